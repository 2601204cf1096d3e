//! TensorBoard event files, for scalars.
//!
//! A file is a sequence of TFRecords: length (u64), masked CRC-32C of it, the bytes, masked CRC-32C of them,
//! all little-endian. The bytes are an `Event` in Protocol Buffers' wire format:
//!
//! ```text
//! Event         { 1: wall_time (double), 2: step (int64), 3: file_version (string), 5: summary (Summary) }
//! Summary       { 1: value (Summary.Value), repeated }
//! Summary.Value { 1: tag (string), 2: simple_value (float) }
//! ```

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Error, Result};

/// Writes scalars to a new event file; a resumed run starts another in the same folder, as TensorBoard expects.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Starts a file in `folder`, which is created where it is missing.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
        let now = wall_time();
        for number in 0.. {
            // TensorBoard looks for this part of the name and reads files in the order of their names.
            let path = folder.join(format!("events.out.tfevents.{:010}.{number}.setrank", now as u64));
            match File::create_new(&path) {
                Ok(file) => {
                    let mut writer = EventWriter { path, file };
                    writer.write(&version_event(now))?;
                    return Ok(writer);
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
        unreachable!("some number is free")
    }

    /// Removes the event files of earlier runs from `folder`, which TensorBoard would mix with a new run's.
    pub fn remove_all(folder: &Path) -> Result<()> {
        let entries = fs::read_dir(folder).map_err(|e| Error::io("read", folder, e))?;
        for entry in entries {
            let path = entry.map_err(|e| Error::io("read", folder, e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("events.out.tfevents.") && name.ends_with(".setrank") {
                fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))?;
            }
        }
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the values of `tags` at `step`; they are in the file when this returns.
    pub fn scalars(&mut self, step: u64, tags: &[(&str, f32)]) -> Result<()> {
        self.write(&scalar_event(wall_time(), step, tags))
    }

    fn write(&mut self, event: &[u8]) -> Result<()> {
        self.file.write_all(&record(event)).map_err(|e| Error::io("write", &self.path, e))
    }
}

/// Seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc(data).to_le_bytes());
    record
}

/// TFRecord's CRC-32C, changed so that a record may hold records.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Wire types of Protocol Buffers.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

fn version_event(wall_time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    push_double(&mut event, 1, wall_time);
    push_bytes(&mut event, 3, b"brain.Event:2");
    event
}

fn scalar_event(wall_time: f64, step: u64, tags: &[(&str, f32)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in tags {
        let mut entry = Vec::new();
        push_bytes(&mut entry, 1, tag.as_bytes());
        push_key(&mut entry, 2, FIXED_32);
        entry.extend(value.to_le_bytes());
        push_bytes(&mut summary, 1, &entry);
    }
    let mut event = Vec::new();
    push_double(&mut event, 1, wall_time);
    push_key(&mut event, 2, VARINT);
    push_varint(&mut event, step);
    push_bytes(&mut event, 5, &summary);
    event
}

fn push_key(out: &mut Vec<u8>, field: u64, wire_type: u64) {
    push_varint(out, field << 3 | wire_type);
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn push_double(out: &mut Vec<u8>, field: u64, value: f64) {
    push_key(out, field, FIXED_64);
    out.extend(value.to_le_bytes());
}

fn push_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    push_key(out, field, LENGTH_DELIMITED);
    push_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message's fields: number, wire type, and the payload (of a varint its value).
    fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = take_varint(&mut bytes);
            let length = match key & 7 {
                VARINT => {
                    fields.push((key >> 3, VARINT, take_varint(&mut bytes).to_le_bytes().to_vec()));
                    continue;
                }
                FIXED_64 => 8,
                FIXED_32 => 4,
                LENGTH_DELIMITED => take_varint(&mut bytes) as usize,
                other => panic!("wire type {other}"),
            };
            fields.push((key >> 3, key & 7, take(&mut bytes, length).to_vec()));
        }
        fields
    }

    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (head, tail) = bytes.split_at(length);
        *bytes = tail;
        head
    }

    fn take_varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = take(bytes, 1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        panic!("a varint of more than ten bytes");
    }

    /// CRC-32C bit by bit, from its polynomial, masked.
    fn plain_masked_crc(data: &[u8]) -> u32 {
        let mut crc = !0u32;
        for &byte in data {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            }
        }
        let crc = !crc;
        crc.rotate_left(17).wrapping_add(0xa282_ead8)
    }

    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let length = take(&mut bytes, 8);
            assert_eq!(take(&mut bytes, 4), plain_masked_crc(length).to_le_bytes());
            let length = u64::from_le_bytes(length.try_into().unwrap());
            let data = take(&mut bytes, length as usize);
            assert_eq!(take(&mut bytes, 4), plain_masked_crc(data).to_le_bytes());
            records.push(data.to_vec());
        }
        records
    }

    #[test]
    fn bytes_are_those_that_tensorboard_writes() {
        // Both records as TensorBoard 2's own RecordWriter and protobuf classes serialise them.
        const VERSION: &str =
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c";
        const SCALARS: &str = "2b00000000000000861bc34b09000000000000044010ac022a1d0a0b0a046c6f7373150000803e0a0e0a076e64636740313015000080bfdc131e78";
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(record(&version_event(1.5))), VERSION);
        assert_eq!(hex(record(&scalar_event(2.5, 300, &[("loss", 0.25), ("ndcg@10", -1.0)]))), SCALARS);
    }

    #[test]
    fn a_file_decodes_to_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let mut writer = EventWriter::create(&runs).unwrap();
        writer.scalars(0, &[("train/loss", 0.5)]).unwrap();
        writer.scalars(300, &[("train/loss", 0.25), ("valid/ndcg@10", f32::NAN)]).unwrap();
        assert!(EventWriter::create(&runs).unwrap().path() != writer.path());

        let events = records(&fs::read(writer.path()).unwrap());
        assert_eq!(events.len(), 3);
        let version = fields(&events[0]);
        assert_eq!(version[1], (3, LENGTH_DELIMITED, b"brain.Event:2".to_vec()));
        let event = fields(&events[2]);
        assert_eq!(event.iter().map(|f| f.0).collect::<Vec<_>>(), [1, 2, 5]);
        let seconds = f64::from_le_bytes(event[0].2[..].try_into().unwrap());
        assert!((wall_time() - seconds).abs() < 60.0);
        assert_eq!(event[1].2, 300u64.to_le_bytes());
        let values = fields(&event[2].2);
        let (loss, ndcg) = (fields(&values[0].2), fields(&values[1].2));
        assert_eq!(
            (loss[0].2.as_slice(), loss[1].2.as_slice()),
            (&b"train/loss"[..], &0.25f32.to_le_bytes()[..])
        );
        assert_eq!(ndcg[0].2, b"valid/ndcg@10");
        assert!(f32::from_le_bytes(ndcg[1].2[..].try_into().unwrap()).is_nan());
    }
}
