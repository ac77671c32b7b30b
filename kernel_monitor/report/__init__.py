"""A session as one HTML file that opens offline. Importing this imports no Bokeh; `page` may, when it renders.

Internal: no part of the public interface.
"""
