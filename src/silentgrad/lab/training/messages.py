"""What jsonargparse says, in the words of the command line."""

import re

from silentgrad.lab.hints import did_you_mean

UNION = r"(?s)Does not validate against any of the Union.*?- (.*?)(?:\. Got value: .*?)?\n.*Given value: (.*)"
CHOICE = r"Expected a typing\.Literal\[(.*?)\]\. Got value: (.*)"


def plainly(message: str) -> str:
    r"""What the parser says about a value, in the user's terms.

    Example:
        >>> plainly("Parser key \"train.epochs\":\n  Expected a <class 'int'>. Got value: x")
        '--train.epochs: Expected a value of type int. Got value: x'
        >>> plainly("Parser key \"model.leaves\":\n  Expected a typing.Literal['exp', 'constant']. Got value: expo")
        '--model.leaves: expo is none of exp, constant. Did you mean exp?'
    """
    # Of a type and None, what is wrong with the type.
    message = re.sub(UNION, r"\1. Got value: \2", message)
    message = re.sub(r'Parser key "([^"]+)":\s*', r"--\1: ", message)
    message = re.sub(CHOICE, _choice, message)
    return re.sub(r"<class '(\w+)'>", r"value of type \1", message)


def _choice(found: re.Match[str]) -> str:
    """A value that is none of those to choose from."""
    names = found[1].replace("'", "").split(", ")
    given = re.sub(r"[\[\]']", "", found[2]).split(", ")
    wrong = next((word for word in given if word not in names), found[2])
    return f"{wrong} is none of {', '.join(names)}.{did_you_mean(wrong, names)}"
