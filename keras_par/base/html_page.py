"""Makes pages of one self-contained file: escaped text in a template, no server, no network, no script but its own."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parent / "page"  # templates and style of all pages


def page(template: Path, values: Mapping[str, Any], scripts: Sequence[Path] = ()) -> str:
    """The text of a page.

    Args:
        template: extends `page.html.j2`; what it includes lies beside it or in the shared folder.
        values: that the template names; all text in them is escaped.
        scripts: run in this order at the page's end; the page's own policy keeps the browser from any other.

    Raises:
        ValueError: jinja2 is not installed.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ModuleNotFoundError:
        raise ValueError("keras-par: a page needs jinja2: run 'pip install jinja2'.") from None
    loader = jinja2.FileSystemLoader([template.parent, SHARED])
    how: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(loader=loader, autoescape=True, **how)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    texts = [path.read_text(encoding="utf-8") for path in scripts]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    policy = " ".join(["script-src", *(f"'sha256-{each}'" for each in hashes)]) if scripts else "script-src 'none'"
    return environment.get_template(template.name).render(values, policy=policy, scripts=[*map(Markup, texts)])
