import cv2
import numpy as np
import pytest
from PIL import Image

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.datasets import load_image, load_mask


def jpeg(path, image, **options):
    Image.fromarray(image).save(path, "JPEG", quality=92, **options)
    return path


def test_a_jpeg_is_read_as_rgb_within_the_decoders_rounding(tmp_path, photo):
    path = jpeg(tmp_path / "a photo ü.jpg", photo)
    expected = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert np.abs(load_image(path) - expected).max() <= 4


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_files_are_read_exactly(tmp_path, photo, kind):
    path = tmp_path / f"photo.{kind.lower()}"
    Image.fromarray(photo).save(path, kind)
    assert np.array_equal(load_image(path), photo)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_other_colour_modes_become_rgb(tmp_path, photo, mode):
    path = tmp_path / ("photo.jpg" if mode == "CMYK" else "photo.png")
    Image.fromarray(photo).convert(mode).save(path)
    image = load_image(path)
    assert image.shape == photo.shape
    assert np.abs(image.astype(int) - np.asarray(Image.open(path).convert("RGB"))).mean() < 2


def test_exif_orientation_is_applied(tmp_path, photo):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = load_image(jpeg(tmp_path / "turned.jpg", photo, exif=exif))
    plain = load_image(jpeg(tmp_path / "plain.jpg", photo))
    assert np.array_equal(turned, np.rot90(plain, -1))


@pytest.mark.parametrize(
    ("min_side", "side"), [(1000, 480), (480, 480), (241, 480), (240, 240), (120, 120), (60, 60), (1, 60)]
)
def test_min_side_decodes_a_jpeg_as_small_as_allowed(tmp_path, photo, min_side, side):
    path = jpeg(tmp_path / "large.jpg", cv2.resize(photo, (640, 480)))
    small = load_image(path, min_side=min_side)
    assert min(small.shape[:2]) == side
    full = cv2.resize(load_image(path), small.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(small.astype(int) - full).mean() < 3


def test_min_side_leaves_other_formats_alone(tmp_path, photo):
    path = tmp_path / "photo.png"
    Image.fromarray(photo).save(path)
    assert np.array_equal(load_image(path, min_side=10), photo)


@pytest.mark.parametrize("min_side", [None, 20])
@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xd9", b"\x89PNG\r\n", "half"])
def test_a_bad_file_is_named(tmp_path, photo, content, min_side):
    path = jpeg(tmp_path / "odd.jpg", photo)
    path.write_bytes(path.read_bytes()[:2000] if content == "half" else content)
    with pytest.raises(DataError, match=r"odd\.jpg"):
        load_image(path, min_side=min_side)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.jpg.*no such file"):
        load_image(tmp_path / "gone.jpg")
    with pytest.raises(UsageError, match="min_side"):
        load_image(tmp_path / "gone.jpg", min_side=0)


def test_masks_keep_their_numbers_whether_grey_deep_or_with_a_palette(tmp_path):
    numbers = np.array([[0, 1, 2], [3, 4, 255]], np.uint8)
    Image.fromarray(numbers).save(tmp_path / "grey.png")
    cv2.imwrite(str(tmp_path / "deep.png"), numbers.astype(np.uint16) * 100)
    coloured = Image.fromarray(numbers).convert("P")
    coloured.putpalette([value % 256 for value in range(7, 7 + 768)])
    coloured.putdata(numbers.ravel().tolist())
    coloured.save(tmp_path / "palette.png")
    assert np.array_equal(load_mask(tmp_path / "grey.png"), numbers)
    assert np.array_equal(load_mask(tmp_path / "deep.png"), numbers.astype(int) * 100)
    assert np.array_equal(load_mask(tmp_path / "palette.png"), numbers)


def test_a_coloured_mask_is_refused(tmp_path, photo):
    Image.fromarray(photo).save(tmp_path / "photo.png")
    with pytest.raises(DataError, match="3 channels"):
        load_mask(tmp_path / "photo.png")
