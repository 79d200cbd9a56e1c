"""Text that somebody else wrote, made safe for GitHub's and GitLab's Markdown, and documents kept below a size.

A commit subject or a case name may hold table bars, HTML, a mention that would notify people, or an issue number that
would link. Entities stand for punctuation because CommonMark (0.31, section 2.5) gives an entity no structural meaning;
a zero-width space after @, # and : keeps what is turned into links after rendering from being recognised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_LONGEST_TEXT = 1000
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_STRUCTURE = re.compile(r"[!\"#$&'*<>@\[\\\]^_`{|}~]")
_LINKED = re.compile(r"(&#(?:64|35);|:(?=//)|www(?=\.))", re.IGNORECASE)


def one_line(text: object) -> str:
    """Text on one line, cut at 1,000 characters; control and direction-changing characters shown as what they are."""
    plain = _UNSEEN.sub(lambda match: " " if match[0] in "\n\r\t" else f"\\u{ord(match[0]):04x}", str(text)).strip()
    return plain if len(plain) <= _LONGEST_TEXT else plain[:_LONGEST_TEXT] + "…"


def prose(text: object) -> str:
    """Text for a paragraph, a list item or a table cell: read as it is, meaning nothing to Markdown or HTML."""
    escaped = _STRUCTURE.sub(lambda match: f"&#{ord(match[0])};", one_line(text))
    return _LINKED.sub(r"\1&#8203;", escaped)


def code(text: object) -> str:
    """Text in a code span; HTML's, since a Markdown one cannot hold every backtick, nor a bar inside a table."""
    escaped = re.sub(r"[^\w\s.,;%/()=+–-]", lambda match: f"&#{ord(match[0])};", one_line(text))
    return f"<code>{escaped.replace('_', '&#95;')}</code>"


def link(label: str, url: str) -> str:
    """A link; both come from the forge's own environment, and what could end the link early is encoded."""
    target = re.sub(r"[^\w:/.?=&%#~+,@-]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), url)
    return f"[{prose(label)}]({target})"


def table_row(cells: Sequence[str]) -> str:
    """A line of a table from cells that are Markdown already."""
    return "| " + " | ".join(cells) + " |"


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of a document. head is kept or left out whole; items are left out from the end until the rest fits.

    rest: what stands for items left out, given how many; tail: closes what head opened.
    """

    head: str
    items: tuple[str, ...] = ()
    tail: str = ""
    rest: Callable[[int], str] = field(default=lambda count: f"\n… and {count} more in the JSON result.")


def fitted(sections: Sequence[Section], limit: int, size: Callable[[str], int]) -> str:
    """The sections in order, none beyond `limit` as `size` counts it; earlier sections have the first claim on it.

    Each item is kept with room for the note about those after it, so the note itself always fits.
    """
    parts: list[str] = []
    left = limit - size("\n")
    for section in sections:
        if not section.head and not section.items:
            continue
        frame = size(section.head + section.tail + "\n\n\n\n") + size(section.rest(len(section.items)) + "\n")
        if frame > left:
            continue
        left -= frame
        kept: list[str] = []
        for item in section.items:
            cost = size(item + "\n")
            if cost > left:
                break
            kept.append(item)
            left -= cost
        lines = [section.head, *kept]
        if len(kept) < len(section.items):
            lines.append(section.rest(len(section.items) - len(kept)))
        parts.append("\n".join(filter(None, [*lines, section.tail])))
    return "\n\n".join(parts) + "\n"


def utf8_bytes(text: str) -> int:
    """How GitHub counts a job summary."""
    return len(text.encode())


def utf16_units(text: str) -> int:
    """The larger of the two ways to count characters: one outside the basic plane counts as two."""
    return len(text.encode("utf-16-le")) // 2
