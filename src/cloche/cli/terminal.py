"""What a guest printed, made safe to show on a terminal."""

from __future__ import annotations

# C0 controls (but tab and newline) and DEL become their pictures, C1 controls an escape: nothing
# moves the cursor, hides text, sets a title or fills the clipboard.
# Source: Unicode, "Control Pictures" (U+2400); ECMA-48.
_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    # Overrides of the writing direction can make a line read as another one.
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}


def make_visible(text: str) -> str:
    """Replaces every control character by something that only looks like it."""
    return text.translate(_SHOWN)
