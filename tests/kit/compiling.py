"""A stand-in for torch.compile that fails."""

import torch


def break_torch_compile(monkeypatch, name, error):
    """Let the function of that name raise an error when it is called compiled, as with a broken Triton.

    Return a list that gets the function at each such call.
    """
    failed = []

    def compile_badly(function, **_):
        def call(*arguments, **named):
            if function.__name__ == name:
                failed.append(function)
                raise error
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(torch, "compile", compile_badly)
    return failed
