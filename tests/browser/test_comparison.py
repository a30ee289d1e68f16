"""Two runs on one page, as a reader's browser shows it."""

import pytest
from test_pages import CONTRAST, PHONE, WIDE, WIDER


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_it_is_drawn_readable_and_asks_nobody(comparison, visit, shoot, width, scheme):
    page, seen = visit(comparison, width=width, scheme=scheme)
    seen.nothing_but(comparison.as_uri())
    assert page.evaluate(CONTRAST) == {}
    assert page.evaluate(WIDER) <= 0
    assert page.locator("figure > svg[role=img]").count() >= 6
    shoot(page, f"comparison-{scheme}-{width}")


def test_what_is_wider_than_the_screen_can_be_scrolled_by_keyboard(comparison, visit):
    page, _ = visit(comparison, width=PHONE)
    unreachable = page.evaluate(
        "() => [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth && e.tabIndex < 0).length"
    )
    assert unreachable == 0
