"""All guides by name.  A new family adds a module of entries and its name here."""

from __future__ import annotations

from data_loaders.registered import Catalogue
from zoo.registry import guides_lbbnn, guides_npl, guides_sip, guides_sspbp
from zoo.registry.entries import GuideEntry

GUIDES = Catalogue(
    "guides",
    GuideEntry,
    {
        entry.name: entry
        for module in (guides_lbbnn, guides_sspbp, guides_npl, guides_sip)
        for entry in module.ENTRIES
    },
)
