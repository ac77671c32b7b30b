"""A session as one HTML file that opens offline. Importing this imports no Bokeh; `page` may, when it renders."""
