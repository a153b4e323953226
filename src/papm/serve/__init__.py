"""A trained model in the browser: `papm serve runs/first`. Needs the extra `papm[serve]`; nothing else of papm imports it."""
