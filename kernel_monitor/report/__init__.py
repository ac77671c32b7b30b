"""A session as one HTML file that opens offline. Importing this imports no Bokeh; `page` does."""
