//! Page files, whole and damaged.

use std::fs;

use rankpact_cache::{PageFiles, Storage};
use tempfile::{TempDir, tempdir};

const KEY: u64 = 0xfeed;

fn stored() -> (TempDir, PageFiles) {
    let folder = tempdir().unwrap();
    let files = PageFiles::open(folder.path().join("pages")).unwrap();
    files.write(KEY, &[7; 100]).unwrap();
    (folder, files)
}

fn damage(files: &PageFiles, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(files.path(KEY)).unwrap();
    change(&mut bytes);
    fs::write(files.path(KEY), bytes).unwrap();
}

#[test]
fn a_page_reads_back_as_it_was_written() {
    let (folder, files) = stored();
    let mut page = [0; 100];
    files.read(KEY, &mut page).unwrap();
    assert_eq!(page, [7; 100]);
    assert!(files.exists(KEY) && !files.exists(KEY + 1));
    let names = fs::read_dir(folder.path().join("pages")).unwrap().count();
    assert_eq!(names, 1, "no temporary file is left");
}

#[test]
fn a_torn_page_is_absent_at_every_length() {
    for length in 0..128 {
        let (_folder, files) = stored();
        damage(&files, |bytes| bytes.truncate(length));
        assert!(!files.exists(KEY), "{length} bytes");
        assert!(files.read(KEY, &mut [0; 100]).is_err(), "{length} bytes");
    }
}

#[test]
fn a_page_with_a_flipped_bit_is_never_read_and_absent_afterwards() {
    for place in 0..128 {
        let (_folder, files) = stored();
        damage(&files, |bytes| bytes[place] ^= 1);
        assert!(files.read(KEY, &mut [0; 100]).is_err(), "byte {place}");
        assert!(!files.exists(KEY), "byte {place}");
        files.write(KEY, &[7; 100]).unwrap();
        files.read(KEY, &mut [0; 100]).unwrap();
    }
}

#[test]
fn a_page_under_the_name_of_another_is_absent() {
    let (_folder, files) = stored();
    fs::copy(files.path(KEY), files.path(1)).unwrap();
    assert!(!files.exists(1));
}

#[test]
fn a_page_of_another_size_is_not_read_but_stays() {
    let (_folder, files) = stored();
    assert!(files.read(KEY, &mut [0; 99]).is_err());
    assert!(files.exists(KEY));
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let (folder, files) = stored();
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(files.write(KEY, &[7; 100]).is_err());
    assert!(!folder.path().exists());
}
