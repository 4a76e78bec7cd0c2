"""What the ranks do together in one call of `fit`: meet, compare, agree, and decide who writes."""
