"""Watchers: work started when files or URLs change."""
