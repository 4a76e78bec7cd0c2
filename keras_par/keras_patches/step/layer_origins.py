"""Knows the line of code that made a layer, which tells more than the one in Keras that its operations stand in."""

from keras.src.backend.common.name_scope import current_path

from keras_par.comm import call_site
from keras_par.keras_patches.variables.operations import layers_under_way

MADE_AT = "_keras_par_made_at"


def noted(original):
    def replacement(cls, *args, **kwargs):
        layer = original(cls, *args, **kwargs)
        vars(layer)[MADE_AT] = call_site.line_of_user()  # not by setattr, which would track it
        return layer

    return replacement


def of_layer_under_way() -> tuple[str, str]:
    """Its path, and the line that made it or the layer that it is a part of."""
    made = (vars(layer).get(MADE_AT) for layer in reversed(layers_under_way()))
    return current_path(), next(filter(None, made), "")
