"""Shows files of the repository as pages of the site, and names of the package as users write them."""

import re
from pathlib import Path

NAME = re.compile(r"^::: keras_par\.(\S+)$", re.MULTILINE)
WHOLE = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


def on_page_markdown(markdown: str, **_) -> str:
    """The page with the files that it names, whose links count from the repository's top, and headings with `kp.`."""
    page = WHOLE.sub(lambda name: Path(name[1]).read_text().replace("](docs/", "]("), markdown)
    return NAME.sub(r"::: keras_par.\1\n    options: {heading: kp.\1, toc_label: kp.\1}", page)
