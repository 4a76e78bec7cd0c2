"""The version of this package, which its metadata take from here."""

VERSION = "0.1.0"
