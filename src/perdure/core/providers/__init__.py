"""Wire formats of model providers: requests that they always accept, and their streams.

`formats.render` repairs the conversation first. Thinking and other private blocks go back only to
the provider and model that sent them, and only if their turn was not changed.
"""
