"""The version of this package, which its metadata take from here."""

VERSION = "0.2.0"
