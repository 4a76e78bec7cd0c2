"""Knows the line of code that made a layer, which tells more than the one in Keras that its operations stand in."""

import keras
from keras.src.backend.common import global_state
from keras.src.backend.common.name_scope import current_path

from keras_par.comm import call_site

MADE_AT = "_keras_par_made_at"


def noted(original):
    def replacement(cls, *args, **kwargs):
        layer = original(cls, *args, **kwargs)
        vars(layer)[MADE_AT] = call_site.line_of_user()  # not by setattr, which would track it
        return layer

    return replacement


def of_layer_under_way() -> tuple[str, str]:
    """Its path, and the line that made it or the layer that it is a part of."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    layers = [scope.caller for scope in stack if isinstance(scope.caller, keras.layers.Layer)]
    made = (vars(layer).get(MADE_AT) for layer in reversed(layers))
    return current_path(), next(filter(None, made), "")
