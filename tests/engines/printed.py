"""What Python prints of an error."""

import traceback


def printed(error):
    """Everything but the lines of source: the error, its notes, its causes and what it came up in."""
    whole = traceback.TracebackException.from_exception(error)
    waiting = [whole]
    while waiting:
        one = waiting.pop()
        if one is not None:
            one.stack.clear()
            waiting += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]
    return "".join(whole.format())
