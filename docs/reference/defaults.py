"""Has the reference show defaults that the code takes from `Options` as what they are."""

import griffe

from keras_par.plan.options import Options

PREFIX = "Options."


class Defaults(griffe.Extension):
    """Replaces a parameter's default, as `Options.zero`, by its value."""

    def on_function(self, *, func: griffe.Function, **kwargs) -> None:
        """Is called for each function and method."""
        for parameter in func.parameters:
            text = str(parameter.default)
            if text.startswith(PREFIX):
                parameter.default = repr(getattr(Options, text.removeprefix(PREFIX)))
