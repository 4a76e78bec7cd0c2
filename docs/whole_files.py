"""Shows files of the repository as pages of the site, so that their text is in one place."""

import re
from pathlib import Path

WHOLE = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


def on_page_markdown(markdown: str, **_) -> str:
    """The page with the files that it names, whose links count from the repository's top."""
    return WHOLE.sub(lambda name: Path(name[1]).read_text().replace("](docs/", "]("), markdown)
