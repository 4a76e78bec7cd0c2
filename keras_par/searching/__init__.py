"""The automatic search: the layout of a model's variables that trains it fastest within the memory of a rank."""
