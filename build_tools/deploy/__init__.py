"""Derived files of the deployment kit: monitoring from the metric table, and the rendered chart that tests validate."""
