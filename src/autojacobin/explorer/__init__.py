"""The explorer: a page that shows what each method retrieves, and why."""

from autojacobin.explorer.bundle import Bundle, build_bundle, explorer_settings, open_run
from autojacobin.explorer.page import explorer_routes, export_page

__all__ = ["Bundle", "build_bundle", "explorer_routes", "explorer_settings", "export_page", "open_run"]
