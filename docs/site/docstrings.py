"""How the reference reads docstrings: those of hashers as they are when the library runs, and all in Markdown."""

from __future__ import annotations

import pydoc
import re
from typing import Any

from griffe import Attribute, Class, ExprCall, Extension, Object

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")


class Docstrings(Extension):
    """Rewrites the docstrings of all that is loaded."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Give a parameter of a method, declared with its limit and its meaning, its default value alone."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "parameter":
            attr.value = attr.value.arguments[0]

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Add the sections that the class of a method gets when it is made, and write the names of others as code."""
        if obj.docstring is None:
            return
        if isinstance(obj, Class) and obj.path.startswith("autojacobin.hashers."):
            obj.docstring.value = pydoc.locate(obj.path).__doc__
        obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
