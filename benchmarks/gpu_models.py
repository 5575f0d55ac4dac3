"""ResNet-18 and ResNet-50 (He et al., "Deep Residual Learning", CVPR 2016), without torchvision."""

from __future__ import annotations

from torch import Tensor, nn

LAYERS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}


def conv(channels: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class Block(nn.Module):
    """Two convolutions, or three where it is deep, and a way around them."""

    def __init__(self, channels: int, width: int, *, stride: int, is_deep: bool) -> None:
        super().__init__()
        out = 4 * width if is_deep else width
        relu = nn.ReLU(inplace=True)
        if is_deep:
            parts = [conv(channels, width, 1), relu, conv(width, width, 3, stride), relu]
            self.body = nn.Sequential(*parts, conv(width, out, 1))
        else:
            self.body = nn.Sequential(conv(channels, out, 3, stride), relu, conv(out, out, 3))
        is_same = stride == 1 and channels == out
        self.around = nn.Identity() if is_same else conv(channels, out, 1, stride)
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.around(x)).relu()


def resnet(name: str, *, width: int = 64, num_classes: int = 1000) -> nn.Sequential:
    """The model; a small `width` makes a toy of it."""
    is_deep = name == "resnet50"
    layers: list[nn.Module] = [conv(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, count in enumerate(LAYERS[name]):
        for number in range(count):
            stride = 2 if stage and not number else 1
            block = Block(channels, width << stage, stride=stride, is_deep=is_deep)
            layers.append(block)
            channels = block.out
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )
