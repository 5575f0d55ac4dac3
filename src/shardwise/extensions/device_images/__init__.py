"""Images that a device decodes: `sw.image(decode_on=)`."""
