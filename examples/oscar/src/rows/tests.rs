use std::fs;

use super::*;
use crate::{
    grid::Setting,
    testing::{preset, row},
};

#[test]
fn a_file_grows_and_knows_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new/rows.jsonl");
    let first = row(preset("kivi"), 0, 0.1, 100.0);
    let mut file = RowFile::open(&path).expect("made");
    file.push(first.clone()).expect("written");
    assert_eq!(file.get(&first.key()), Some(&first));
    drop(file);

    // Cut off in the middle of the second row.
    let whole = fs::read_to_string(&path).expect("reads");
    fs::write(&path, format!("{whole}{}", &whole[..50])).expect("writes");
    let mut file = RowFile::open(&path).expect("opens");
    assert!(file.repaired);
    let second = row(preset("kivi"), 500, 0.1, 100.0);
    assert!(file.get(&second.key()).is_none());
    file.push(second.clone()).expect("written");
    assert_eq!(read(&[path]).expect("reads"), [first, second]);
}

#[test]
fn what_is_no_row_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    let mut old = row(preset("kivi"), 0, 0.1, 100.0);
    old.format = 0;
    let old = serde_json::to_string(&old).expect("JSON");
    for (text, expected) in [
        ("{\"a\": 1}\n".to_string(), "line 1: not a row"),
        (format!("{old}\n"), "format 0"),
    ] {
        fs::write(&path, &text).expect("writes");
        let error = RowFile::open(&path).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("reads"), text);
    }
}

#[test]
fn of_equal_measurements_the_last_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, row: &Row| {
        let path = folder.path().join(name);
        RowFile::open(&path)
            .expect("made")
            .push(row.clone())
            .expect("written");
        path
    };
    let first = row(preset("kivi"), 0, 0.1, 100.0);
    let mut again = first.clone();
    again.seconds = 1.0;
    let paths = [write("a", &first), write("b", &again)];
    assert_eq!(read(&paths).expect("reads"), [again]);
}

#[test]
fn keys_tell_measurements_apart() {
    let key = |setting: Setting, start| row(setting, start, 0.1, 100.0).key();
    let usual = key(preset("kivi"), 0);
    assert_ne!(usual, key(preset("kivi"), 1));
    assert_ne!(usual, key(preset("hadamard"), 0));
    let windows = |windows, name| Setting {
        windows: Some(windows),
        ..preset(name)
    };
    assert_ne!(usual, key(windows([0, 128], "kivi"), 0));
    assert_eq!(usual, key(windows([64, 256], "kivi"), 0));
    assert_eq!(key(preset("exact"), 0), key(windows([0, 128], "exact"), 0));
    let labelled = Setting {
        label: Some("mine".to_string()),
        ..preset("kivi")
    };
    assert_eq!(usual, key(labelled, 0));
}

#[test]
fn windows_count_in_16_bits() {
    let exact = MemoryReport {
        tokens: 100,
        resident_bytes: 4000,
        page_bytes: 3000,
        exact_bytes: 2000,
        key_page_bits: 32.0,
        value_page_bits: 32.0,
        ..MemoryReport::default()
    };
    let bytes = Bytes::new(&exact, &exact);
    assert_eq!((bytes.resident_16_bit, bytes.page_bits), (2000.0, None));
    assert_eq!((bytes.per_token(), bytes.bits_per_value), (20.0, 16.0));

    // 1,000 bytes of exact tokens at 32 bits; pages of 2 and 3 bits.
    let packed = MemoryReport {
        resident_bytes: 1200,
        page_bytes: 200,
        key_page_bits: 3.0,
        value_page_bits: 2.0,
        ..exact
    };
    let bytes = Bytes::new(&packed, &exact);
    assert_eq!((bytes.resident_16_bit, bytes.page_bits), (700.0, Some(2.5)));
    // Exact values in pages take 32 of 34 bits, and half of them on a GPU.
    let half = MemoryReport {
        page_bytes: 340,
        key_page_bits: 2.0,
        value_page_bits: 32.0,
        resident_bytes: 340,
        ..exact
    };
    assert!((Bytes::new(&half, &exact).resident_16_bit - 180.0).abs() < 1e-9);
}
