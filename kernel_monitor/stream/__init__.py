"""The connection between kernel and pages: messages, requests, subscriptions, and processes that render charts.

Imports nothing: rendering a recorded session starts its process before anything large is imported.

Internal: no part of the public interface.
"""
