"""Readers of boxes, masks and breeds from local files."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from boxwright.core.errors import DataError, UsageError
from boxwright.vision.datasets import (
    CocoCaptions,
    CocoDetection,
    OxfordIIITPet,
    SegmentationImageFolder,
    VOCDetection,
    VOCSegmentation,
)

XML = """<annotation>
  <folder>VOC2012</folder>
  <size><width>160</width><height>120</height><depth>3</depth></size>
  {objects}
</annotation>"""
OBJECT = """<object><name>{name}</name>
  <bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>{parts}</object>"""


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.fixture
def voc(tmp_path, photo):
    base = tmp_path / "VOCdevkit" / "VOC2012"
    objects = {
        "a": OBJECT.format(name="dog", parts="")
        + OBJECT.format(name="cat", parts="<part>head</part><part>hand</part>"),
        "b": OBJECT.format(name="cow", parts="<part>head</part>"),
        "c": "",
    }
    (base / "Annotations").mkdir(parents=True)
    for name, text in objects.items():
        save(base / "JPEGImages" / f"{name}.jpg", photo)
        (base / "Annotations" / f"{name}.xml").write_text(XML.format(objects=text))
    (base / "ImageSets" / "Main").mkdir(parents=True)
    (base / "ImageSets" / "Main" / "train.txt").write_text("a\nb\nc\n")
    (base / "ImageSets" / "Main" / "val.txt").write_text("c  1\n\n")
    return tmp_path


def test_voc_gives_the_annotation_as_nested_dicts(voc):
    data = VOCDetection(voc)
    image, target = data[0]
    assert image.shape == (120, 160, 3)
    assert target["annotation"]["size"]["width"] == "160"
    dog, cat = target["annotation"]["object"]
    assert dog == {"name": "dog", "bndbox": {"xmin": "1", "ymin": "2", "xmax": "3", "ymax": "4"}}
    assert cat["part"] == ["head", "hand"]
    assert len(data) == 3
    assert data.annotations == data.targets


def test_voc_objects_are_a_list_even_if_there_is_one_or_none(voc):
    data = VOCDetection(voc)
    assert [item["name"] for item in data[1][1]["annotation"]["object"]] == ["cow"]
    assert data[1][1]["annotation"]["object"][0]["part"] == "head"
    assert data[2][1]["annotation"]["object"] == []


def test_voc_reads_lists_with_a_second_column(voc):
    assert len(VOCDetection(voc, image_set="val")) == 1


def test_voc_names_what_is_wrong(voc):
    with pytest.raises(UsageError, match="1999"):
        VOCDetection(voc, year="1999")
    with pytest.raises(UsageError, match="'test'"):
        VOCDetection(voc, image_set="test")
    with pytest.raises(UsageError, match="VOC2007"):
        VOCDetection(voc, year="2007", image_set="test", download=True)
    with pytest.raises(DataError, match="VOC2007"):
        VOCDetection(voc, year="2007", image_set="test")
    with pytest.raises(UsageError, match="not all of them"):
        VOCDetection(voc, transform=str, transforms=zip)
    data = VOCDetection(voc)
    (voc / "VOCdevkit" / "VOC2012" / "Annotations" / "a.xml").write_text("<annotation>")
    with pytest.raises(DataError, match=r"a\.xml"):
        data[0]


@pytest.fixture
def coco(tmp_path, photo):
    save(tmp_path / "images" / "x.png", photo)
    save(tmp_path / "images" / "y.png", photo[::-1])
    content = {
        "images": [{"id": 70, "file_name": "y.png"}, {"id": 9, "file_name": "x.png"}],
        "categories": [{"id": 18, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 70, "category_id": 18, "bbox": [1, 2, 3, 4]},
            {"id": 2, "image_id": 70, "category_id": 18, "bbox": [5, 6, 7, 8]},
        ],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return tmp_path


def test_coco_gives_images_in_the_order_of_their_ids_with_their_annotations(coco, photo):
    data = CocoDetection(coco / "images", coco / "boxes.json")
    assert data.ids == [9, 70]
    assert data[0][1] == []
    image, annotations = data[1]
    assert np.array_equal(image, photo[::-1])
    assert [item["bbox"] for item in annotations] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert data.categories[18]["name"] == "dog"


def test_coco_uses_the_transform_of_both(coco):
    data = CocoDetection(coco / "images", coco / "boxes.json", transforms=lambda image, boxes: (image.ndim, len(boxes)))
    assert data[1] == (3, 2)


@pytest.mark.parametrize("content", ["{", "[]", '{"annotations": []}', '{"images": [{"file_name": "x.png"}]}'])
def test_a_file_that_is_not_cocos_is_named(coco, content):
    (coco / "boxes.json").write_text(content)
    with pytest.raises(DataError, match=r"boxes\.json"):
        CocoDetection(coco / "images", coco / "boxes.json")


def test_segmentation_gives_a_box_and_a_mask_of_each_object(tmp_path, photo):
    mask = np.zeros((120, 160), np.uint8)
    mask[10:20, 30:50] = 3
    mask[5, 7] = 1
    save(tmp_path / "images" / "a.png", photo)
    save(tmp_path / "masks" / "a_mask.png", mask)
    image, target = SegmentationImageFolder(tmp_path, "images", "masks")[0]
    assert np.array_equal(image, photo)
    assert target["boxes"].tolist() == [[7, 5, 8, 6], [30, 10, 50, 20]]
    assert target["area"].tolist() == [1, 200]
    assert target["masks"].dtype == torch.uint8
    assert np.array_equal(target["masks"][1].numpy(), mask == 3)
    assert target["labels"].tolist() == [1, 1]
    assert target["iscrowd"].tolist() == [0, 0]
    assert target["image_id"].tolist() == [0]


def test_an_empty_mask_has_no_objects(tmp_path, photo):
    save(tmp_path / "images" / "a.png", photo)
    save(tmp_path / "masks" / "a.png", np.zeros((120, 160), np.uint8))
    target = SegmentationImageFolder(tmp_path, "images", "masks", lambda image, target: (image, target))[0][1]
    assert target["boxes"].shape == (0, 4)
    assert target["masks"].shape == (0, 120, 160)


def test_images_and_masks_that_do_not_match_are_named(tmp_path, photo):
    save(tmp_path / "images" / "a.png", photo)
    save(tmp_path / "masks" / "b.png", photo[..., 0])
    with pytest.raises(DataError, match=r"'a\.png'.*'b\.png'"):
        SegmentationImageFolder(tmp_path, "images", "masks")
    save(tmp_path / "masks" / "a.png", photo[..., 0])
    with pytest.raises(DataError, match="1 images"):
        SegmentationImageFolder(tmp_path, "images", "masks")
    with pytest.raises(DataError, match="nowhere"):
        SegmentationImageFolder(tmp_path, "nowhere", "masks")


@pytest.fixture
def pets(tmp_path, photo):
    base = tmp_path / "oxford-iiit-pet"
    for name in ("Abyssinian_1", "great_pyrenees_7"):
        save(base / "images" / f"{name}.jpg", photo)
        save(base / "annotations" / "trimaps" / f"{name}.png", np.full((120, 160), 2, np.uint8))
    (base / "annotations" / "trainval.txt").write_text("great_pyrenees_7 2 2 1\nAbyssinian_1 1 1 1\n")
    return tmp_path


def test_pets_have_a_breed_a_species_and_a_trimap(pets):
    data = OxfordIIITPet(pets, target_types=("category", "binary-category", "segmentation"))
    image, (breed, species, trimap) = data[0]
    assert data.classes == ["Abyssinian", "Great Pyrenees"]
    assert (breed, species) == (1, 1)
    assert data.class_to_idx["Great Pyrenees"] == 1
    assert data.bin_class_to_idx == {"Cat": 0, "Dog": 1}
    assert trimap.shape == image.shape[:2]
    assert (trimap == 2).all()
    assert len(data) == 2


def test_one_target_type_comes_alone_and_none_as_none(pets):
    assert OxfordIIITPet(pets)[1][1] == 0
    assert OxfordIIITPet(pets, target_types=[])[1][1] is None
    assert OxfordIIITPet(pets, target_transform=lambda breed: breed + 10)[1][1] == 10


def test_a_download_of_files_that_are_there_is_accepted(voc, pets):
    assert len(VOCDetection(voc, download=True)) == 3
    assert len(OxfordIIITPet(pets, download=True)) == 2


def test_voc_segmentation_gives_the_class_of_each_pixel(voc):
    base = voc / "VOCdevkit" / "VOC2012"
    (base / "ImageSets" / "Segmentation").mkdir()
    (base / "ImageSets" / "Segmentation" / "train.txt").write_text("b\n")
    mask = Image.fromarray(np.array([[0, 3], [255, 1]], np.uint8))
    mask.putpalette([value for index in range(256) for value in (index, 0, 255 - index)])
    (base / "SegmentationClass").mkdir()
    mask.save(base / "SegmentationClass" / "b.png")
    data = VOCSegmentation(voc)
    image, classes = data[0]
    assert image.shape == (120, 160, 3)
    assert classes.tolist() == [[0, 3], [255, 1]]
    assert data.masks == data.targets


def test_captions_are_the_texts_of_an_image(tmp_path, photo):
    save(tmp_path / "a.png", photo)
    content = {"images": [{"id": 4, "file_name": "a.png"}], "annotations": []}
    content["annotations"] = [{"image_id": 4, "caption": text} for text in ("one dog", "a dog")]
    listing = tmp_path / "captions.json"
    listing.write_text(json.dumps(content))
    assert CocoCaptions(tmp_path, listing)[0][1] == ["one dog", "a dog"]
    content["annotations"].append({"image_id": 4, "bbox": [0, 0, 1, 1]})
    listing.write_text(json.dumps(content))
    with pytest.raises(DataError, match="caption"):
        CocoCaptions(tmp_path, listing)[0]


def test_pets_name_what_is_wrong(pets):
    with pytest.raises(UsageError, match="'val'"):
        OxfordIIITPet(pets, split="val")
    with pytest.raises(UsageError, match="'breed'"):
        OxfordIIITPet(pets, target_types="breed")
    with pytest.raises(UsageError, match="oxford-iiit-pet"):
        OxfordIIITPet(pets / "elsewhere", download=True)
    with pytest.raises(DataError, match=r"test\.txt"):
        OxfordIIITPet(pets, split="test")
    (pets / "oxford-iiit-pet" / "annotations" / "test.txt").write_text("Abyssinian_1 one\n")
    with pytest.raises(DataError, match=r"test\.txt"):
        OxfordIIITPet(pets, split="test")


def test_a_set_reads_nothing_outside_of_its_folder(tmp_path, photo, voc):
    save(tmp_path / "private.jpg", photo)
    (tmp_path / "coco").mkdir()
    file = tmp_path / "coco/x.json"
    for name in (str(tmp_path / "private.jpg"), "../private.jpg"):
        file.write_text(json.dumps({"images": [{"id": 1, "file_name": name}], "annotations": []}))
        with pytest.raises(DataError, match=r"private\.jpg', which is outside"):
            CocoDetection(tmp_path / "coco", file)[0]
        assert CocoDetection(tmp_path / "coco", file, allow_outside=True)[0][0].shape == photo.shape
    (voc / "VOCdevkit/VOC2012/ImageSets/Main/train.txt").write_text("../../../private\n")
    with pytest.raises(DataError, match="which is outside"):
        VOCDetection(voc)


def test_a_json_of_another_form_is_refused(tmp_path):
    for text in ('{"images": ' + "[" * 100_000, '{"images": [{"id": 1}, {"id": "a"}]}', "[]"):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(DataError, match="not in COCO's form"):
            CocoDetection(tmp_path, tmp_path / "x.json")
