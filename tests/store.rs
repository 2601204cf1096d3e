//! `.sets` files: what goes in comes out, and a file that was cut, altered or forged is an error.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use setrank::Error;
use setrank::data::letor::{self, LetorOptions};
use setrank::data::{Absent, Dataset, DatasetBuilder, Document, RawFeatures, initial, store, subset};

/// Bytes of the header, and where in it the checksums of header and body stand.
const HEADER: usize = 256;
const CHECKSUMS: [usize; 2] = [12, 16];

fn read(text: &str, options: &LetorOptions) -> Dataset {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.txt");
    std::fs::write(&path, text).unwrap();
    letor::read(&[path], options).unwrap()
}

/// A data set that uses every section.
fn sample() -> Dataset {
    let folder = tempfile::tempdir().unwrap();
    let mut data = read(
        "1 qid:b 1:0.5 3:NULL #docid = x\n0 qid:a 2:7\n-1 qid:b 1:2 3:4 #docid = ü\n2 qid:a 1:1\n",
        &LetorOptions::default(),
    );
    let scores = folder.path().join("scores");
    std::fs::write(&scores, "3\nNULL\n1\n2\n").unwrap();
    let features = vec!["2:asc".parse().unwrap()];
    initial::attach(&mut data, &initial::InitialSources { files: vec![scores], features }).unwrap();
    data
}

/// Everything a data set holds, as one text: equal texts, equal data.
fn dump(data: &Dataset) -> String {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let mut text = format!("{:?} {:?} {:?}", data.columns(), data.has_labels(), data.num_initial());
    for query in data.queries() {
        let ids: Vec<_> = (0..query.len()).map(|document| query.document_id(document)).collect();
        let initial: Vec<_> = (0..data.num_initial()).map(|r| bits(query.initial_scores(r))).collect();
        let positions = &data.positions()[query.rows()];
        text += &format!(
            "\n{} {:?} {:?} {:?} {ids:?} {initial:?} {positions:?}",
            query.id(),
            query.rows(),
            bits(query.features()),
            query.labels().map(bits)
        );
    }
    text
}

/// The bytes of a store of `data`.
fn stored(data: &Dataset) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.sets");
    store::write(data, &path).unwrap();
    std::fs::read(&path).unwrap()
}

/// Opens a file of these bytes and dumps what is in it.
fn opened(bytes: &[u8]) -> setrank::Result<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.sets");
    std::fs::write(&path, bytes).unwrap();
    store::open(&path).map(|data| dump(&data))
}

/// Makes both checksums right again.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let [header, body] = CHECKSUMS;
    let checksum = crc32c::crc32c(&bytes[HEADER..]);
    bytes[body..body + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes[header..header + 4].fill(0);
    let checksum = crc32c::crc32c(&bytes[..HEADER]);
    bytes[header..header + 4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

#[test]
fn a_store_gives_back_what_was_written() {
    let data = sample();
    assert_eq!(data.num_initial(), 2);
    assert_eq!(opened(&stored(&data)).unwrap(), dump(&data));
    assert_eq!(sealed(stored(&data)), stored(&data));

    let unlabelled = {
        let mut builder = DatasetBuilder::new(0);
        builder.start_query("none");
        builder.start_query("one");
        builder.push(Document::default());
        builder.finish()
    };
    assert_eq!(opened(&stored(&unlabelled)).unwrap(), dump(&unlabelled));
}

#[test]
fn kinds_of_damage_are_told_apart() {
    let bytes = stored(&sample());
    let reason = |bytes: &[u8]| match opened(bytes) {
        Err(Error::Damaged { path, reason }) => {
            assert!(path.ends_with("data.sets"));
            reason
        }
        other => panic!("{other:?}"),
    };
    assert!(reason(&bytes[..100]).contains("truncated"));
    assert!(reason(&bytes[..bytes.len() - 1]).contains("truncated"));
    assert!(reason(b"").contains("truncated"));
    let altered = |place: usize| {
        let mut bytes = bytes.clone();
        bytes[place] ^= 0x10;
        reason(&bytes)
    };
    assert!(altered(0).contains("not a .sets file"));
    assert!(altered(8).contains("version 17"));
    assert!(altered(60).contains("header"));
    assert!(altered(HEADER + 1).contains("checksum"));
    assert!(matches!(store::open(Path::new("no/such/file.sets")), Err(Error::Io { .. })));
    assert!(matches!(store::open(&std::env::temp_dir()), Err(Error::Io { .. })));
}

#[test]
fn stores_are_known_by_their_first_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.txt");
    store::write(&sample(), &path).unwrap();
    assert!(store::is_store(&path).unwrap());
    std::fs::write(&path, "1 qid:1 1:1\n").unwrap();
    assert!(!store::is_store(&path).unwrap());
    assert!(!store::is_store(Path::new("-")).unwrap());
    assert!(store::is_store(&folder.path().join("none")).is_err());
}

proptest! {
    #[test]
    fn a_cut_or_altered_store_is_an_error(place: prop::sample::Index, change in 1u8.., cut: bool, seal: bool) {
        let mut bytes = stored(&sample());
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= change;
        }
        prop_assert!(opened(&bytes).is_err());
        // With right checksums it may be other data, but never a panic.
        if seal && bytes.len() >= HEADER {
            let _ = opened(&sealed(bytes));
        }
    }

    #[test]
    fn a_forged_header_gives_data_or_an_error(field in 5usize..(224 / 4), value in prop_oneof![
        any::<u32>(), 0u32..600, Just(u32::MAX), Just(1 << 31)
    ]) {
        let mut bytes = stored(&sample());
        bytes[4 * field..4 * field + 4].copy_from_slice(&value.to_le_bytes());
        let _ = opened(&sealed(bytes));
    }

    #[test]
    fn a_split_keeps_every_query_once(queries in 2usize..40, share in 0.05f64..0.95, seed: u64) {
        match subset::split_queries(queries, share, seed) {
            Ok((kept, split)) => {
                prop_assert_eq!(split.len(), (queries as f64 * share).round() as usize);
                prop_assert!(!kept.is_empty() && kept.is_sorted() && split.is_sorted());
                let mut all = [kept, split].concat();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..queries));
            }
            Err(_) => {
                let count = (queries as f64 * share).round() as usize;
                prop_assert!(count == 0 || count == queries);
            }
        }
    }
}

#[test]
fn forged_content_is_an_error() {
    let bytes = stored(&sample());
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    // The section table stands at byte 80; these are its offsets, labels, positions, text and its ends.
    for (section, value) in
        [(1, 9u64), (2, u64::from(f32::NAN.to_bits())), (3, 4), (3, 1), (4, 0xFF), (5, 9), (7, 9)]
    {
        let place = word(80 + 16 * section);
        let mut forged = bytes.clone();
        let width = word(80 + 16 * section + 8).min(8);
        forged[place..place + width].copy_from_slice(&value.to_le_bytes()[..width]);
        let opened = opened(&sealed(forged));
        assert!(matches!(opened, Err(Error::Damaged { .. })), "section {section} = {value}: {opened:?}");
    }
}

#[test]
fn a_failed_write_leaves_the_file_before() {
    let folder = tempfile::tempdir().unwrap();
    let (text, output) = (folder.path().join("data.txt"), folder.path().join("data.sets"));
    std::fs::write(&output, "before").unwrap();
    std::fs::write(&text, "1 qid:1 1:1\n1 qid:1 1:x\n").unwrap();
    let result = letor::import(&[text], &LetorOptions::default(), &output, &[], &|_| Ok(()));
    assert!(matches!(result, Err(Error::Parse { line: 2, .. })));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn an_import_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (text, output) = (folder.path().join("data.txt"), folder.path().join("data.sets"));
    std::fs::write(&text, "1 qid:1 1:1\n").unwrap();
    let stop = |_| Err(Error::data("stopped"));
    assert!(letor::import(&[text], &LetorOptions::default(), &output, &[], &stop).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn parts_carry_everything() {
    let data = sample();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.sets");
    subset::write_subset(&data, &[1], &path).unwrap();
    let part = store::open(&path).unwrap();
    let (whole, part_query) = (data.query(1), part.query(0));
    assert_eq!((part.num_queries(), part_query.id(), part_query.len()), (1, "a", 2));
    assert_eq!(part.num_features(), data.num_features());
    assert_eq!(part_query.labels(), whole.labels());
    assert_eq!(part.positions(), [0, 1]);
    for ranking in 0..2 {
        let bits = |scores: &[f32]| scores.iter().map(|score| score.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(part_query.initial_scores(ranking)), bits(whole.initial_scores(ranking)));
    }
}

#[test]
fn initial_rankings_follow_the_original_order() {
    let mut data = sample();
    // Rows are b, b, a, a; the file was b, a, b, a.
    assert_eq!(data.query(0).initial_scores(0), [3.0, 1.0]);
    assert!(data.query(1).initial_scores(0)[0].is_nan());
    assert_eq!(data.query(1).initial_scores(1)[0], -7.0);
    assert!(data.query(0).initial_scores(1)[0].is_nan());

    initial::attach(&mut data, &initial::InitialSources::default()).unwrap();
    assert_eq!(data.num_initial(), 2);
    let features = vec!["1".parse().unwrap()];
    initial::attach(&mut data, &initial::InitialSources { files: vec![], features }).unwrap();
    assert_eq!((data.num_initial(), data.query(0).initial_scores(0)), (1, &[0.5, 2.0][..]));
    for index in ["0", "4"] {
        let features = vec![index.parse().unwrap()];
        let error = initial::attach(&mut data, &initial::InitialSources { files: vec![], features });
        assert!(error.unwrap_err().to_string().contains("1 to 3"));
        assert_eq!(data.num_initial(), 1);
    }
}

#[test]
fn score_files_are_read_strictly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scores");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        initial::read_scores(&path)
    };
    let scores = read("1.5\r\n -2e1 \nnull\n3\n\n").unwrap();
    assert_eq!((scores[0], scores[1], scores[3], scores.len()), (1.5, -20.0, 3.0, 4));
    assert!(scores[2].is_nan());
    for (text, wrong) in
        [("1\nnan\n", 2), ("inf\n", 1), ("1\n\n2\n", 2), ("1 2\n", 1), ("1e39", 1), ("# x", 1), ("1e308", 1)]
    {
        assert!(matches!(read(text), Err(Error::Parse { line, .. }) if line == wrong), "{text}");
    }
}

fn model(first_index: u32, count: u32, absent: Absent) -> RawFeatures {
    RawFeatures { first_index, count, absent }
}

/// The first row of `data` as `model` reads it, missing values as -1.
fn aligned(data: &Dataset, model: RawFeatures) -> setrank::Result<Vec<f32>> {
    let mut row = vec![f32::INFINITY; model.count as usize];
    data.aligned_to(model)?.read_row(data.query(0).document(0), &mut row);
    Ok(row.into_iter().map(|value| if value.is_nan() { -1.0 } else { value }).collect())
}

#[test]
fn rows_align_with_a_model_by_raw_index() {
    let missing = Absent::Missing;
    let one = read("1 qid:1 1:1 2:2\n", &LetorOptions::default());
    assert_eq!(aligned(&one, model(1, 2, missing)).unwrap(), [1.0, 2.0]);
    assert_eq!(aligned(&one, model(1, 4, missing)).unwrap(), [1.0, 2.0, -1.0, -1.0]);
    assert_eq!(aligned(&one, model(0, 4, missing)).unwrap(), [-1.0, 1.0, 2.0, -1.0]);
    // Complete rows suit either meaning of an absent feature; features beyond them are absent.
    assert_eq!(aligned(&one, model(1, 2, Absent::Zero)).unwrap(), [1.0, 2.0]);
    assert!(aligned(&one, model(0, 3, Absent::Zero)).is_err());
    let zeros = LetorOptions { absent: Absent::Zero, ..Default::default() };
    let sparse = read("1 qid:1 2:2\n", &zeros);
    assert_eq!(aligned(&sparse, model(0, 4, Absent::Zero)).unwrap(), [0.0, 0.0, 2.0, 0.0]);

    let zero = read("1 qid:1 0:5 1:6\n", &LetorOptions::default());
    assert_eq!(aligned(&zero, model(0, 2, missing)).unwrap(), [5.0, 6.0]);
    let message = aligned(&zero, model(1, 2, missing)).unwrap_err().to_string();
    assert!(message.contains("feature 0 (first in document 1 of query 1)"), "{message}");

    // Columns that were declared but do not occur are no obstacle.
    let wide = LetorOptions { index_base: letor::IndexBase::Zero, features: Some(9), ..Default::default() };
    assert_eq!(aligned(&read("1 qid:1 1:6\n", &wide), model(1, 2, missing)).unwrap(), [6.0, -1.0]);

    let beyond = read("1 qid:1 1:1\n1 qid:2 1:1\n0 qid:2 3:4\n", &LetorOptions::default());
    let message = aligned(&beyond, model(1, 2, missing)).unwrap_err().to_string();
    assert!(message.contains("feature 3 (first in document 2 of query 2)"), "{message}");
    let message = aligned(&beyond, model(1, 3, Absent::Zero)).unwrap_err().to_string();
    assert!(message.contains("--absent zero"), "{message}");
}

#[test]
fn stores_of_parallel_checks_agree_with_serial_ones() {
    // More than two pieces of the checksum.
    let mut builder = DatasetBuilder::new(1000);
    builder.start_query("q");
    let row: Vec<f32> = (0..1000).map(|v| v as f32).collect();
    for _ in 0..5000 {
        builder.push(Document { features: &row, ..Document::default() });
    }
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("large.sets");
    store::write(&builder.finish(), &path).unwrap();
    assert_eq!(store::open(&path).unwrap().query(0).document(4999), &row[..]);
}
