//! What goes over the control connections of a job that has formed.

use std::time::Duration;

use crate::admission::{GroupId, Reader, Writer};
use crate::error::Rank;

use super::roster::State;
use super::seat::Group;
use super::verdict::{Left, Report, Verdict};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A rank tells what happens to its call.
    Report(Report),
    /// A rank leaves by itself; from rank 0, to the others.
    Left(Left),
    /// Rank 0 asks how far everybody is. Answered by the control thread at once, whatever the program does meanwhile.
    Where {
        question: u32,
    },
    Here {
        question: u32,
        begun: u64,
        completed: u64,
    },
    /// Rank 0 asks what everybody calls in call `sequence`. Answered by the call itself.
    Say {
        sequence: u64,
    },
    Says {
        sequence: u64,
        call: String,
    },
    /// A rank has been in call `sequence` for long; what it calls, in a number that is the same for equal calls.
    Lingers {
        sequence: u64,
        fingerprint: u64,
    },
    /// It is over.
    Verdict(Verdict),
    /// Rank 0 is gone, and the one who says so has told all that it has heard of it (`inquest`).
    Bereft,
}

/// News of a group. Those of the group of all are what they are; others begin with who the group is, since rank 0, which has to
/// judge, may not be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Letter {
    pub group: Group,
    pub news: News,
}

const OF_GROUP: u8 = 30;

impl Letter {
    /// Bytes of the longest that can be meant: a few texts, and two lists of ranks.
    pub fn limit(world: usize) -> usize {
        (32 << 10) + 8 * world
    }

    pub fn encode(&self) -> Vec<u8> {
        let Letter { group: Group { id, ranks, name }, news } = self;
        if id.is_job() {
            return news.encode();
        }
        let mut bytes = Writer::new(OF_GROUP).long(id.list).long(id.number).text(name).ranks(ranks).done();
        bytes.extend(news.encode());
        bytes
    }

    /// `job`: the group of all. None unless a group has a member, and no others than ranks of the job.
    pub fn decode(bytes: &[u8], job: &Group) -> Option<Letter> {
        if bytes.first() != Some(&OF_GROUP) {
            return Some(Letter { group: job.clone(), news: News::decode(bytes)? });
        }
        let mut r = Reader::new(&bytes[1..]);
        let id = GroupId { list: r.long()?, number: r.long()? };
        let (name, ranks) = (r.text()?, r.ranks()?);
        let fits = !id.is_job() && !ranks.is_empty() && ranks.iter().all(|rank| job.ranks.contains(rank));
        let group = fits.then(|| Group { id, ranks: ranks.into(), name: name.into() })?;
        Some(Letter { group, news: News::decode(r.rest())? })
    }
}

impl News {
    /// What only rank 0 may say.
    pub fn is_from_rank_0(&self) -> bool {
        matches!(self, News::Where { .. } | News::Say { .. } | News::Verdict(_))
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            News::Report(report) => write_report(report),
            News::Left(left) => Writer::new(20).word(left.rank).byte(left.state as u64 as u8).long(left.completed),
            News::Where { question } => Writer::new(21).word(*question),
            News::Here { question, begun, completed } => Writer::new(22).word(*question).long(*begun).long(*completed),
            News::Say { sequence } => Writer::new(23).long(*sequence),
            News::Says { sequence, call } => Writer::new(24).long(*sequence).text(call),
            News::Verdict(verdict) => verdict.write(Writer::new(25)),
            News::Lingers { sequence, fingerprint } => Writer::new(26).long(*sequence).long(*fingerprint),
            News::Bereft => Writer::new(27),
        }
        .done()
    }

    pub fn decode(bytes: &[u8]) -> Option<News> {
        let mut r = Reader::new(bytes);
        let news = match r.byte()? {
            tag @ 10..=15 => News::Report(read_report(tag, &mut r)?),
            20 => News::Left(Left { rank: r.word()?, state: State::of(r.byte()?.into()), completed: r.long()? }),
            21 => News::Where { question: r.word()? },
            22 => News::Here { question: r.word()?, begun: r.long()?, completed: r.long()? },
            23 => News::Say { sequence: r.long()? },
            24 => News::Says { sequence: r.long()?, call: r.text()? },
            25 => News::Verdict(Verdict::read(&mut r)?),
            26 => News::Lingers { sequence: r.long()?, fingerprint: r.long()? },
            27 => News::Bereft,
            _ => return None,
        };
        r.end()?;
        Some(news)
    }
}

fn write_report(report: &Report) -> Writer {
    match report {
        Report::TimedOut { sequence, call, waited, awaited } => {
            let millis = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            Writer::new(10).long(*sequence).text(call).long(millis).ranks(awaited)
        }
        Report::Differs { sequence, call } => Writer::new(11).long(*sequence).text(call),
        Report::Refused { sequence, reason } => Writer::new(12).long(*sequence).text(reason),
        Report::Stuck { sequence, call } => Writer::new(13).long(*sequence).text(call),
        Report::Broken { sequence, rank, why } => Writer::new(14).long(*sequence).word(*rank).text(why),
        Report::Failed { text } => Writer::new(15).text(text),
    }
}

fn read_report(tag: u8, r: &mut Reader<'_>) -> Option<Report> {
    Some(match tag {
        10 => {
            let (sequence, call, millis) = (r.long()?, r.text()?, r.long()?);
            Report::TimedOut { sequence, call, waited: Duration::from_millis(millis), awaited: r.ranks()? }
        }
        11 => Report::Differs { sequence: r.long()?, call: r.text()? },
        12 => Report::Refused { sequence: r.long()?, reason: r.text()? },
        13 => Report::Stuck { sequence: r.long()?, call: r.text()? },
        14 => {
            let (sequence, rank): (u64, Rank) = (r.long()?, r.word()?);
            Report::Broken { sequence, rank, why: r.text()? }
        }
        15 => Report::Failed { text: r.text()? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Kind;
    use super::*;
    use proptest::prelude::*;

    fn news() -> Vec<News> {
        let (sequence, call) = (1 << 40, "all_reduce(op=sum, …)".to_owned());
        let waited = Duration::from_millis(1500);
        vec![
            News::Report(Report::TimedOut { sequence, call: call.clone(), waited, awaited: vec![3, 1] }),
            News::Report(Report::Differs { sequence, call: call.clone() }),
            News::Report(Report::Refused { sequence, reason: String::new() }),
            News::Report(Report::Stuck { sequence, call: call.clone() }),
            News::Report(Report::Broken { sequence, rank: 9, why: "reset".into() }),
            News::Report(Report::Failed { text: "no".into() }),
            News::Left(Left { rank: 4, state: State::Raised, completed: 17 }),
            News::Where { question: 2 },
            News::Here { question: 2, begun: 7, completed: 6 },
            News::Say { sequence },
            News::Says { sequence, call },
            News::Lingers { sequence, fingerprint: u64::MAX - 5 },
            News::Verdict(Verdict { kind: Kind::Finished, ranks: vec![5], text: "so it is".into() }),
            News::Bereft,
        ]
    }

    #[test]
    fn news_survive_the_wire_and_nothing_shorter_or_longer_passes() {
        for news in news() {
            let bytes = news.encode();
            assert_eq!(News::decode(&bytes), Some(news));
            for end in 0..bytes.len() {
                assert_eq!(News::decode(&bytes[..end]), None);
            }
            assert_eq!(News::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn letters_of_groups_survive_the_wire() {
        let job = Group::job(10);
        let group = Group { id: GroupId { list: u64::MAX, number: 3 }, ranks: [7, 2].into(), name: "rows[1]".into() };
        for news in news() {
            for group in [&job, &group] {
                let letter = Letter { group: group.clone(), news: news.clone() };
                let bytes = letter.encode();
                assert_eq!(Letter::decode(&bytes, &job), Some(letter));
                for end in 0..bytes.len() {
                    assert_eq!(Letter::decode(&bytes[..end], &job), None);
                }
            }
            let letter = Letter { group: group.clone(), news };
            assert_eq!(Letter::decode(&letter.encode(), &Group::job(7)), None, "rank 7 is no rank of that job");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(tag in 8..29u8, bytes in any::<Vec<u8>>()) {
            if let Some(news) = News::decode(&[&[tag], &bytes[..]].concat()) {
                prop_assert_eq!(News::decode(&news.encode()), Some(news));
            }
        }
    }
}
