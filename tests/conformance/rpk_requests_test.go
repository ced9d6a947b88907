package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	rpkTopic         = "of-rpk"
	rpkGroup         = "group-of-rpk"
	rpkTransactional = "transactional-of-rpk"
	rpkPartitions    = 3
	rpkRecords       = 12
	rpkPatience      = 30 * time.Second
)

// rpkSession has what the subtests share: they build on each other, as commands of an operator do.
type rpkSession struct {
	*testing.T
	ctx   context.Context
	seeds string
	admin *kadm.Client
}

// TestRequestsOfRpk sends the requests of those commands of rpk that use Kafka's protocol. rpk itself cannot run here,
// but it is a thin layer above franz-go's kgo and kadm. ADMIN_SEEDS names an open listener whose clients are super users.
func TestRequestsOfRpk(t *testing.T) {
	seeds := os.Getenv("ADMIN_SEEDS")
	if seeds == "" {
		t.Skip("ADMIN_SEEDS is not set")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	admin, err := kadm.NewOptClient(rpkOptions(seeds)...)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, command := range []struct {
		name string
		run  func(rpkSession)
	}{
		{"cluster info", rpkClusterInfo},
		{"topic create", rpkTopicCreate},
		{"topic list", rpkTopicList},
		{"topic alter-config", rpkAlterConfig},
		{"topic add-partitions", rpkAddPartitions},
		{"topic produce, describe and consume", rpkRecordsBothWays},
		{"topic trim-prefix", rpkTrimPrefix},
		{"group with a member", rpkGroupWithMember},
		{"group without members", rpkGroupWithoutMembers},
		{"cluster txn", rpkTransactions},
		{"cluster logdirs describe", rpkLogDirs},
		{"cluster quotas", rpkQuotas},
		{"topic delete", rpkTopicDelete},
	} {
		if !t.Run(command.name, func(t *testing.T) { command.run(rpkSession{t, ctx, seeds, admin}) }) {
			return
		}
	}
}

func rpkOptions(seeds string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(seeds),
		kgo.ClientID("rpk"),
		// rpk gives up after 5 s, too soon for a busy machine.
		kgo.RetryTimeout(rpkPatience),
		kgo.MetadataMinAge(250 * time.Millisecond),
	}
}

func (s rpkSession) client(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(rpkOptions(s.seeds), options...)...)
	s.must(err)
	return client
}

func (s rpkSession) must(errs ...error) {
	s.Helper()
	if err := errors.Join(errs...); err != nil {
		s.Fatal(err)
	}
}

func (s rpkSession) mustBe(is bool, format string, values ...any) {
	s.Helper()
	if !is {
		s.Fatalf(format, values...)
	}
}

func (s rpkSession) eventually(what string, is func() bool) {
	s.Helper()
	for end := time.Now().Add(rpkPatience); !is(); time.Sleep(50 * time.Millisecond) {
		s.mustBe(time.Now().Before(end), "not within %v: %s", rpkPatience, what)
	}
}

// poll reads records until there are enough.
func (s rpkSession) poll(client *kgo.Client, count int) []*kgo.Record {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, rpkPatience)
	defer cancel()
	var records []*kgo.Record
	for len(records) < count {
		fetches := client.PollFetches(ctx)
		s.must(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

func rpkClusterInfo(s rpkSession) {
	found, err := s.admin.Metadata(s.ctx)
	s.must(err)
	s.mustBe(found.Cluster != "" && len(found.Brokers) > 0, "%+v", found)
	s.mustBe(slices.Contains(found.Brokers.NodeIDs(), found.Controller), "controller %d", found.Controller)
}

func rpkTopicCreate(s rpkSession) {
	retention := "3600000"
	configs := map[string]*string{"retention.ms": &retention}
	checked, err := s.admin.ValidateCreateTopics(s.ctx, rpkPartitions, -1, configs, rpkTopic)
	s.must(err, checked[rpkTopic].Err)
	created, err := s.admin.CreateTopics(s.ctx, rpkPartitions, -1, configs, rpkTopic)
	s.must(err, created[rpkTopic].Err)
	s.mustBe(created[rpkTopic].NumPartitions == rpkPartitions, "%+v", created)
	again, err := s.admin.CreateTopics(s.ctx, rpkPartitions, -1, nil, rpkTopic)
	s.must(err)
	s.mustBe(errors.Is(again[rpkTopic].Err, kerr.TopicAlreadyExists), "%v", again[rpkTopic].Err)
}

func rpkTopicList(s rpkSession) {
	s.eventually("the topic has leaders", func() bool {
		listed, err := s.admin.ListTopicsWithInternal(s.ctx)
		s.must(err)
		detail := listed[rpkTopic]
		led := 0
		for _, partition := range detail.Partitions {
			if partition.Err == nil && partition.Leader >= 0 && partition.LeaderEpoch >= 0 {
				led++
			}
		}
		return led == rpkPartitions
	})
	missing, err := s.admin.ListTopics(s.ctx, "no-"+rpkTopic)
	s.must(err)
	s.mustBe(errors.Is(missing["no-"+rpkTopic].Err, kerr.UnknownTopicOrPartition), "%+v", missing)
}

func (s rpkSession) config(name string) string {
	s.Helper()
	found, err := s.admin.DescribeTopicConfigs(s.ctx, rpkTopic)
	s.must(err, found[0].Err)
	for _, config := range found[0].Configs {
		if config.Key == name {
			return config.MaybeValue()
		}
	}
	s.Fatalf("no setting %s", name)
	return ""
}

func rpkAlterConfig(s rpkSession) {
	s.mustBe(s.config("retention.ms") == "3600000", "%s", s.config("retention.ms"))
	value, list := "7200000", "compact"
	set := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}
	dry, err := s.admin.ValidateAlterTopicConfigs(s.ctx, set, rpkTopic)
	s.must(err, dry[0].Err)
	s.mustBe(s.config("retention.ms") == "3600000", "the dry run changed the setting")
	for _, step := range []struct {
		change kadm.AlterConfig
		is     func(string) bool
	}{
		{set[0], func(found string) bool { return found == value }},
		{
			kadm.AlterConfig{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: &list},
			func(found string) bool { return found == "delete,compact" },
		},
		{
			kadm.AlterConfig{Op: kadm.SubtractConfig, Name: "cleanup.policy", Value: &list},
			func(found string) bool { return found == "delete" },
		},
		// The default is a matter of the broker's settings.
		{
			kadm.AlterConfig{Op: kadm.DeleteConfig, Name: "retention.ms"},
			func(found string) bool { return found != value },
		},
	} {
		altered, err := s.admin.AlterTopicConfigs(s.ctx, []kadm.AlterConfig{step.change}, rpkTopic)
		s.must(err, altered[0].Err)
		s.eventually(fmt.Sprintf("operation %d on %s", step.change.Op, step.change.Name), func() bool {
			return step.is(s.config(step.change.Name))
		})
	}
}

func rpkAddPartitions(s rpkSession) {
	added, err := s.admin.CreatePartitions(s.ctx, 2, rpkTopic)
	s.must(err, added[rpkTopic].Err)
	s.eventually("the topic has more partitions", func() bool {
		found, err := s.admin.ListTopics(s.ctx, rpkTopic)
		s.must(err)
		return len(found[rpkTopic].Partitions) == rpkPartitions+2
	})
}

func rpkRecordsBothWays(s rpkSession) {
	codecs := []kgo.CompressionCodec{
		kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(),
	}
	partitions := rpkPartitions + 2
	for index, codec := range codecs {
		client := s.client(kgo.ProducerBatchCompression(codec), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for number := range rpkRecords {
			record := &kgo.Record{
				Topic:     rpkTopic,
				Partition: int32(index % partitions),
				Key:       []byte(fmt.Sprint(number)),
				Value:     []byte("value"),
				Headers:   []kgo.RecordHeader{{Key: "codec", Value: []byte{byte(index)}}},
			}
			s.must(client.ProduceSync(s.ctx, record).FirstErr())
		}
		client.Close()
	}
	starts, err := s.admin.ListStartOffsets(s.ctx, rpkTopic)
	s.must(err, starts.Error())
	ends, err := s.admin.ListEndOffsets(s.ctx, rpkTopic)
	s.must(err, ends.Error())
	stable, err := s.admin.ListCommittedOffsets(s.ctx, rpkTopic)
	s.must(err, stable.Error())
	for partition := range int32(partitions) {
		start, _ := starts.Lookup(rpkTopic, partition)
		end, _ := ends.Lookup(rpkTopic, partition)
		last, _ := stable.Lookup(rpkTopic, partition)
		s.mustBe(start.Offset == 0 && end.Offset == rpkRecords && last.Offset == rpkRecords, "%v %v %v", start, end, last)
	}
	for name, topics := range map[string][]kgo.Opt{
		"by name":    {kgo.ConsumeTopics(rpkTopic)},
		"by pattern": {kgo.ConsumeTopics("^of-rp.$"), kgo.ConsumeRegex()},
	} {
		client := s.client(append(topics, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		records := s.poll(client, partitions*rpkRecords)
		client.Close()
		s.mustBe(len(records) == partitions*rpkRecords, "%s: %d records", name, len(records))
		for _, record := range records {
			s.mustBe(record.Headers[0].Value[0] == byte(record.Partition), "%s: %+v", name, record)
		}
	}
	last := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		rpkTopic: {0: kgo.NewOffset().AtEnd().Relative(-3)},
	}))
	defer last.Close()
	records := s.poll(last, 3)
	s.mustBe(records[0].Offset == rpkRecords-3, "%+v", records[0])
}

func rpkTrimPrefix(s rpkSession) {
	var before kadm.Offsets
	before.Add(kadm.Offset{Topic: rpkTopic, Partition: 0, At: 4})
	trimmed, err := s.admin.DeleteRecords(s.ctx, before)
	s.must(err, trimmed.Error())
	answer, _ := trimmed.Lookup(rpkTopic, 0)
	s.mustBe(answer.LowWatermark == 4, "%+v", answer)
	after, err := s.admin.ListOffsetsAfterMilli(s.ctx, 0, rpkTopic)
	s.must(err, after.Error())
	first, _ := after.Lookup(rpkTopic, 0)
	s.mustBe(first.Offset == 4, "%+v", first)
	late, err := s.admin.ListOffsetsAfterMilli(s.ctx, time.Now().Add(time.Hour).UnixMilli(), rpkTopic)
	s.must(err, late.Error())
	end, _ := late.Lookup(rpkTopic, 0)
	s.mustBe(end.Offset == rpkRecords, "kadm replaces the answer -1 by the end: %+v", end)
}

func (s rpkSession) listed(states ...string) bool {
	s.Helper()
	groups, err := s.admin.ListGroups(s.ctx, states...)
	s.must(err)
	_, is := groups[rpkGroup]
	return is
}

// rpkTopicPartitions are those of which the group has an offset.
func rpkTopicPartitions() kadm.TopicsSet {
	set := make(kadm.TopicsSet)
	for partition := range int32(rpkPartitions + 2) {
		set.Add(rpkTopic, partition)
	}
	return set
}

func rpkGroupWithMember(s rpkSession) {
	member := s.client(
		kgo.ConsumerGroup(rpkGroup), kgo.ConsumeTopics(rpkTopic), kgo.AutoCommitMarks(),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	defer member.Close()
	records := s.poll(member, 5*rpkRecords-4)
	s.eventually("the group is stable", func() bool { return s.listed("Stable") })
	s.mustBe(!s.listed("Empty"), "a stable group is listed as empty")
	lags, err := s.admin.Lag(s.ctx, rpkGroup)
	group := lags[rpkGroup]
	s.must(err, group.Error())
	s.mustBe(group.State == "Stable" && group.Protocol == "cooperative-sticky" && len(group.Members) == 1, "%+v", group)
	s.mustBe(group.Lag.Total() == int64(len(records)), "lag %d of %d records", group.Lag.Total(), len(records))
	// rpk explains these three answers to its user.
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: rpkTopic, Partition: 0, At: 5, LeaderEpoch: -1})
	committed, err := s.admin.CommitOffsets(s.ctx, rpkGroup, offsets)
	s.must(err)
	s.mustBe(errors.Is(committed.Error(), kerr.UnknownMemberID), "seek: %v", committed.Error())
	s.must(member.CommitMarkedOffsets(s.ctx))
	removed, err := s.admin.DeleteOffsets(s.ctx, rpkGroup, rpkTopicPartitions())
	s.must(err)
	s.mustBe(errors.Is(removed.Error(), kerr.GroupSubscribedToTopic), "offset-delete: %v", removed.Error())
	deleted, err := s.admin.DeleteGroups(s.ctx, rpkGroup)
	s.must(err)
	s.mustBe(errors.Is(deleted[rpkGroup].Err, kerr.NonEmptyGroup), "delete: %v", deleted[rpkGroup].Err)
	member.MarkCommitRecords(records...)
	s.must(member.CommitMarkedOffsets(s.ctx))
	lags, err = s.admin.Lag(s.ctx, rpkGroup)
	s.must(err)
	s.mustBe(lags[rpkGroup].Lag.Total() == 0, "lag %d", lags[rpkGroup].Lag.Total())
}

func rpkGroupWithoutMembers(s rpkSession) {
	s.eventually("the group is empty", func() bool { return s.listed("Empty") })
	prior, err := s.admin.FetchOffsets(s.ctx, rpkGroup)
	s.must(err, prior.Error())
	at, _ := prior.Lookup(rpkTopic, 0)
	s.mustBe(at.At == rpkRecords, "%+v", at)
	starts, err := s.admin.ListStartOffsets(s.ctx, rpkTopic)
	s.must(err, starts.Error())
	committed, err := s.admin.CommitOffsets(s.ctx, rpkGroup, starts.Offsets())
	s.must(err, committed.Error())
	lags, err := s.admin.Lag(s.ctx, rpkGroup)
	s.must(err)
	s.mustBe(lags[rpkGroup].Lag.Total() == 5*rpkRecords-4, "lag %d", lags[rpkGroup].Lag.Total())
	removed, err := s.admin.DeleteOffsets(s.ctx, rpkGroup, rpkTopicPartitions())
	s.must(err, removed.Error())
	deleted, err := s.admin.DeleteGroups(s.ctx, rpkGroup)
	s.must(err)
	// A group without members and offsets may be gone at once.
	gone := deleted[rpkGroup].Err
	s.mustBe(gone == nil || errors.Is(gone, kerr.GroupIDNotFound), "%v", gone)
	s.mustBe(!s.listed(), "the group is still listed")
}

func rpkTransactions(s rpkSession) {
	client := s.client(kgo.TransactionalID(rpkTransactional), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer client.Close()
	s.must(client.BeginTransaction())
	s.must(client.ProduceSync(s.ctx, &kgo.Record{Topic: rpkTopic, Partition: 1, Value: []byte("open")}).FirstErr())
	listed, err := s.admin.ListTransactions(s.ctx, nil, nil)
	s.must(err)
	listing := listed[rpkTransactional]
	s.mustBe(listing.State == "Ongoing" && listing.ProducerID >= 0, "%+v", listed)
	described, err := s.admin.DescribeTransactions(s.ctx, rpkTransactional)
	s.must(err, described[rpkTransactional].Err)
	transaction := described[rpkTransactional]
	s.mustBe(transaction.ProducerID == listing.ProducerID && transaction.Topics.Lookup(rpkTopic, 1), "%+v", transaction)
	where := make(kadm.TopicsSet)
	where.Add(rpkTopic, 1)
	producers, err := s.admin.DescribeProducers(s.ctx, where)
	s.must(err)
	found := false
	for _, producer := range producers.SortedProducers() {
		found = found || producer.ProducerID == listing.ProducerID && producer.CurrentTxnStartOffset == rpkRecords
	}
	s.mustBe(found, "%+v", producers)
	stable, err := s.admin.ListCommittedOffsets(s.ctx, rpkTopic)
	s.must(err)
	last, _ := stable.Lookup(rpkTopic, 1)
	s.mustBe(last.Offset == rpkRecords, "last stable offset %d", last.Offset)
	s.must(client.EndTransaction(s.ctx, kgo.TryAbort))
	s.eventually("the transaction is aborted", func() bool {
		listed, err := s.admin.ListTransactions(s.ctx, nil, []string{"CompleteAbort", "Empty"})
		s.must(err)
		_, is := listed[rpkTransactional]
		return is
	})
}

func rpkLogDirs(s rpkSession) {
	topics, err := s.admin.ListTopics(s.ctx, rpkTopic)
	s.must(err)
	for name, asked := range map[string]kadm.TopicsSet{"all topics": nil, "one topic": topics.TopicsSet()} {
		found, err := s.admin.DescribeAllLogDirs(s.ctx, asked)
		s.must(err)
		bytes := int64(0)
		found.Each(func(directory kadm.DescribedLogDir) {
			s.must(directory.Err)
			for _, partition := range directory.Topics[rpkTopic] {
				bytes += partition.Size
			}
		})
		s.mustBe(bytes > 0, "%s: no bytes", name)
	}
}

func rpkQuotas(s rpkSession) {
	name := "client-of-rpk"
	for what, entity := range map[string]kadm.ClientQuotaEntity{
		"a client":       {{Type: "client-id", Name: &name}},
		"client default": {{Type: "client-id"}},
	} {
		match := kadm.DescribeClientQuotaComponent{Type: "client-id", MatchName: entity[0].Name}
		if entity[0].Name == nil {
			match.MatchType = 1 // the default entity
		}
		described := func() kadm.DescribedClientQuotas {
			found, err := s.admin.DescribeClientQuotas(s.ctx, true, []kadm.DescribeClientQuotaComponent{match})
			s.must(err)
			return found
		}
		add := []kadm.AlterClientQuotaEntry{{
			Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "consumer_byte_rate", Value: 200000}},
		}}
		dry, err := s.admin.ValidateAlterClientQuotas(s.ctx, add)
		s.must(err, dry[0].Err)
		s.mustBe(len(described()) == 0, "%s: the dry run set the quota", what)
		altered, err := s.admin.AlterClientQuotas(s.ctx, add)
		s.must(err, altered[0].Err)
		s.eventually(what+" has the quota", func() bool {
			found := described()
			return len(found) == 1 && found[0].Values[0].Value == 200000
		})
		add[0].Ops[0] = kadm.AlterClientQuotaOp{Key: "consumer_byte_rate", Remove: true}
		altered, err = s.admin.AlterClientQuotas(s.ctx, add)
		s.must(err, altered[0].Err)
		s.eventually(what+" has no quota", func() bool { return len(described()) == 0 })
	}
}

func rpkTopicDelete(s rpkSession) {
	deleted, err := s.admin.DeleteTopics(s.ctx, rpkTopic)
	s.must(err, deleted[rpkTopic].Err)
	s.eventually("the topic is gone", func() bool {
		found, err := s.admin.ListTopics(s.ctx)
		s.must(err)
		return !found.Has(rpkTopic)
	})
	again, err := s.admin.DeleteTopics(s.ctx, rpkTopic)
	s.must(err)
	s.mustBe(errors.Is(again[rpkTopic].Err, kerr.UnknownTopicOrPartition), "%v", again[rpkTopic].Err)
}
