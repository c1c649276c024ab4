"""Docstrings name others as ``:func:`name```, which Markdown does not know; here they become plain code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")


class PlainRoles(Extension):
    """Rewrites the docstrings of all that is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite one."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
