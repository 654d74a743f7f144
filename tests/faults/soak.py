"""placeholder"""


async def soak(seconds: float, seed: str) -> int:
    return 0
