"""The dashboard: pages for people, made on the server from the contract; live where the browser runs scripts.

A page is a function that asks the service and fills a template. Whatever changes is shown by asking for the same page again and
morphing it into place, when the log says that something moved: so there is one way to draw a page, with and without scripts.
Actions are forms that post to the page's own address, and lead back to it.
"""
