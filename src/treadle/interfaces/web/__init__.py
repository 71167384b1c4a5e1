"""The dashboard: pages rendered on the server from the contract, with live updates where the browser runs scripts.

A page is a function that calls the service and fills a template. After an event in the log, the script fetches the same page again
and morphs it into place, so every page is rendered in one way. Actions are forms that post to the page's address and redirect back.
"""
