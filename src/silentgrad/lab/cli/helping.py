"""What --help says of an option: its sentence, what it takes and its default, in the words of the command line."""

import re
from argparse import Action

from jsonargparse import DefaultHelpFormatter


def in_words(text: str) -> str:
    """What jsonargparse says of an option, without the notation of Python's types.

    Example:
        >>> in_words("Kind of device. (type: Optional[Literal['cpu', 'gpu']], default: null)")
        'Kind of device. (one of cpu, gpu)'
        >>> in_words("Widths of layers. (type: list[int], default: [512])")
        'Widths of layers. (list of int, default: 512)'
    """
    text = re.sub(r"Optional\[(.*?)\](?=[,)])", r"\1", text)
    text = re.sub(r"Literal\[(.*?)\]", lambda found: f"one of {found[1]}".replace("'", ""), text)
    text = re.sub(r"list\[one of (.*?)\]", r"some of \1", text)
    text = re.sub(r"list\[(.*?)\]", r"list of \1", text)
    text = re.sub(r" \| null|\btype: |, default: null|, default: \[\](?=\))", "", text)
    text = re.sub(r"default: (True|False)\)", lambda found: found[0].lower(), text)
    return re.sub(r"default: \[(.*?)\]", lambda found: f"default: {found[1]}".replace("'", ""), text)


class HelpFormatter(DefaultHelpFormatter):
    """Help in sentences."""

    def _expand_help(self, action: Action) -> str:
        return in_words(super()._expand_help(action))

    def _format_args(self, action: Action, default_metavar: str) -> str:
        """What stands behind an option: a word for what it takes; the choices are in the sentence."""
        shown = str(super()._format_args(action, default_metavar))
        if shown.startswith("{") and shown != "{true,false}":
            return default_metavar
        return shown.replace("[ITEM,...]", "ITEM,...")
