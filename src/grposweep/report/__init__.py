"""Tables, screens and the HTML report of a sweep, made from its folder."""
