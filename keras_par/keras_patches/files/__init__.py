"""Files of models, which all ranks save and load together."""
