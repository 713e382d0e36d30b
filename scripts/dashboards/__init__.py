"""Grafana's dashboards of compose/monitoring: tables of panels, and the JSON made of them."""
