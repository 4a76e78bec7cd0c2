"""Pure arithmetic of distribution: which rows, elements and names belong to which rank."""
