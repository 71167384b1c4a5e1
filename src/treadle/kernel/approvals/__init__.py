"""Approvals: questions for people, their votes, reminders and expiry."""
