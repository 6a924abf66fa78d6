"""What jsonargparse says, in the words of the command line."""

import re

UNION = r"(?s)Does not validate against any of the Union.*?- (.*?)(?:\. Got value: .*?)?\n.*Given value: (.*)"


def plainly(message: str) -> str:
    r"""What the parser says about a value, in the user's terms.

    Example:
        >>> plainly("Parser key \"train.epochs\":\n  Expected a <class 'int'>. Got value: x")
        '--train.epochs: Expected a value of type int. Got value: x'
    """
    # Of a type and None, what is wrong with the type.
    message = re.sub(UNION, r"\1. Got value: \2", message)
    message = re.sub(r'Parser key "([^"]+)":\s*', r"--\1: ", message)
    message = re.sub(r"typing\.Literal\[(.*?)\]", r"value among \1", message)
    return re.sub(r"<class '(\w+)'>", r"value of type \1", message)
