"""Alerts: rules that report problems by signed webhooks, mail or chat, once per cause."""
