//! `setrank export`.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use setrank::data::letor::{self, Labels};
use setrank::data::{Absent, Dataset};
use setrank::files;

use super::source::{self, TextArgs};

/// Arguments of `setrank export`.
#[derive(clap::Args)]
pub struct Args {
    /// The .sets file
    path: PathBuf,

    /// The text file to write; `-` is stdout
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    text: TextArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    source::refuse_to_overwrite([&args.path], &args.output)?;
    let data = source::open(&[args.path], &args.text, Labels::Optional)?;
    letor::check_ids(&data)?;
    if args.output == Path::new("-") {
        let mut out = BufWriter::new(std::io::stdout().lock());
        letor::write(&data, &mut out)?;
        out.flush()?;
    } else {
        files::write_atomically(&args.output, |out| letor::write(&data, out))?;
    }
    tell_what_text_cannot_say(&data);
    Ok(())
}

/// Says on stderr which options read the text back, and what is not in it.
fn tell_what_text_cannot_say(data: &Dataset) {
    let columns = data.columns();
    if columns.absent_cells > 0 {
        let absent = match columns.absent {
            Absent::Missing => "missing",
            Absent::Zero => "zero",
        };
        tell!(
            "to read it back: --features {} --index-base {} --absent {absent}",
            columns.count,
            columns.first_index
        );
    }
    if data.num_initial() > 0 {
        tell!("not in the text: {} initial ranking(s)", data.num_initial());
    }
}
