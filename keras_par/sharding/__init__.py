"""Tensors divided over the ranks of a mesh, and operations on them that give what one process would compute."""
