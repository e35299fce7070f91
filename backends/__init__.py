"""Where tokens come from: SGLang over HTTP or in-process, the embedded engine, a script."""
