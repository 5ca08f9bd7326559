// Tests of the Kafka listener with sarama, a Go client whose own functional tests want brokers in containers.
// KAFKA_SEEDS has the addresses of the brokers.
package sarama

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kafka "github.com/IBM/sarama"
)

const (
	partitions = 4
	patience   = 60 * time.Second // guards against a hang
)

var seeds = strings.Split(os.Getenv("KAFKA_SEEDS"), ",")

// versions: what sarama speaks unless told otherwise, and the newest it knows, with other versions of requests.
var versions = []kafka.KafkaVersion{kafka.DefaultVersion, kafka.MaxVersion}

func forEachVersion(t *testing.T, test func(t *testing.T, config *kafka.Config)) {
	for _, version := range versions {
		t.Run(version.String(), func(t *testing.T) {
			config := kafka.NewConfig()
			config.Version = version
			config.Producer.Return.Successes = true
			config.Producer.RequiredAcks = kafka.WaitForAll
			config.Consumer.Offsets.Initial = kafka.OffsetOldest
			config.Consumer.Return.Errors = true
			test(t, config)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newAdmin(t *testing.T, config *kafka.Config) kafka.ClusterAdmin {
	t.Helper()
	admin, err := kafka.NewClusterAdmin(seeds, config)
	must(t, err)
	t.Cleanup(func() { admin.Close() })
	return admin
}

// name gives a name that no other test has.
func name(t *testing.T) string {
	return fmt.Sprintf("%s-%d", strings.NewReplacer("/", "-", "#", "-").Replace(t.Name()), time.Now().UnixNano())
}

func newTopic(t *testing.T, config *kafka.Config, partitions int32) string {
	t.Helper()
	topic := name(t)
	must(t, newAdmin(t, config).CreateTopic(topic, &kafka.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false))
	return topic
}

// produce stores messages "0" to "count-1" with keys, each waited for, and checks that each offset is told once.
func produce(t *testing.T, config *kafka.Config, topic string, count int) {
	t.Helper()
	producer, err := kafka.NewSyncProducer(seeds, config)
	must(t, err)
	defer func() { must(t, producer.Close()) }()
	told := map[string]bool{}
	for i := range count {
		value := kafka.StringEncoder(fmt.Sprint(i))
		partition, offset, err := producer.SendMessage(&kafka.ProducerMessage{Topic: topic, Key: value, Value: value})
		must(t, err)
		told[fmt.Sprint(partition, offset)] = true
	}
	if len(told) != count {
		t.Fatalf("places: expected %d, found %d", count, len(told))
	}
}

// read returns the values of the first `count` messages of all partitions of a topic.
func read(t *testing.T, config *kafka.Config, topic string, count int) []string {
	t.Helper()
	consumer, err := kafka.NewConsumer(seeds, config)
	must(t, err)
	defer func() { must(t, consumer.Close()) }()
	numbers, err := consumer.Partitions(topic)
	must(t, err)
	messages := make(chan *kafka.ConsumerMessage)
	done := make(chan struct{})
	defer close(done)
	for _, number := range numbers {
		reader, err := consumer.ConsumePartition(topic, number, kafka.OffsetOldest)
		must(t, err)
		defer reader.AsyncClose()
		go func() {
			for {
				select {
				case message := <-reader.Messages():
					select {
					case messages <- message:
					case <-done:
						return
					}
				case <-done:
					return
				}
			}
		}()
	}
	var values []string
	timeout := time.After(patience)
	for len(values) < count {
		select {
		case message := <-messages:
			values = append(values, string(message.Value))
		case <-timeout:
			t.Fatalf("messages: expected %d, found %d", count, len(values))
		}
	}
	return values
}

// checkOnce checks that the values are "0" to "count-1", each once.
func checkOnce(t *testing.T, values []string, count int) {
	t.Helper()
	seen := map[string]int{}
	for _, value := range values {
		seen[value]++
	}
	for i := range count {
		if seen[fmt.Sprint(i)] != 1 {
			t.Fatalf("message %d: expected once, found %d times", i, seen[fmt.Sprint(i)])
		}
	}
	if len(values) != count {
		t.Fatalf("messages: expected %d, found %d", count, len(values))
	}
}

func TestSyncProducer(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		topic := newTopic(t, config, partitions)
		produce(t, config, topic, 50)
		checkOnce(t, read(t, config, topic, 50), 50)
	})
}

func TestAsyncIdempotentProducerOfEachCodec(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		for _, codec := range []kafka.CompressionCodec{
			kafka.CompressionNone, kafka.CompressionGZIP, kafka.CompressionSnappy, kafka.CompressionLZ4, kafka.CompressionZSTD,
		} {
			t.Run(codec.String(), func(t *testing.T) {
				const count = 2000
				config := *config
				config.Producer.Idempotent = true
				config.Producer.Compression = codec
				config.Net.MaxOpenRequests = 1
				topic := newTopic(t, &config, partitions)
				producer, err := kafka.NewAsyncProducer(seeds, &config)
				must(t, err)
				go func() {
					for i := range count {
						producer.Input() <- &kafka.ProducerMessage{
							Topic: topic, Value: kafka.StringEncoder(fmt.Sprint(i)),
							Headers: []kafka.RecordHeader{{Key: []byte("h"), Value: []byte("v")}},
						}
					}
					producer.AsyncClose()
				}()
				var failures sync.WaitGroup
				failures.Go(func() {
					for failure := range producer.Errors() {
						t.Error(failure)
					}
				})
				acknowledged := 0
				for range producer.Successes() {
					acknowledged++
				}
				failures.Wait()
				if acknowledged != count {
					t.Fatalf("acknowledged: expected %d, found %d", count, acknowledged)
				}
				checkOnce(t, read(t, &config, topic, count), count)
			})
		}
	})
}

// member consumes in a group, and tells what it is assigned and what it reads.
type member struct {
	group    kafka.ConsumerGroup
	assigned chan []int32
	messages chan string
	cancel   context.CancelFunc
	done     chan struct{}
}

func (m *member) Setup(session kafka.ConsumerGroupSession) error {
	var numbers []int32
	for _, claimed := range session.Claims() {
		numbers = append(numbers, claimed...)
	}
	m.assigned <- numbers
	return nil
}

func (m *member) Cleanup(kafka.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session kafka.ConsumerGroupSession, claim kafka.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		m.messages <- string(message.Value)
	}
	return nil
}

func join(t *testing.T, config *kafka.Config, groupID string, topic string) *member {
	t.Helper()
	group, err := kafka.NewConsumerGroup(seeds, groupID, config)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{group, make(chan []int32, 100), make(chan string, 10000), cancel, make(chan struct{})}
	go func() {
		for range group.Errors() { // a rebalance may be one: what counts is what is consumed
		}
	}()
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, m); errors.Is(err, kafka.ErrClosedConsumerGroup) {
				return
			}
		}
	}()
	return m
}

func (m *member) leave(t *testing.T) {
	t.Helper()
	m.cancel()
	<-m.done
	must(t, m.group.Close())
}

// await takes assignments until a member has `count` partitions.
func (m *member) await(t *testing.T, count int) []int32 {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case numbers := <-m.assigned:
			if len(numbers) == count {
				return numbers
			}
		case <-timeout:
			t.Fatalf("partitions: expected %d", count)
		}
	}
}

func TestGroupOfTwoMembersRebalances(t *testing.T) {
	strategies := []kafka.BalanceStrategy{
		kafka.NewBalanceStrategyRange(), kafka.NewBalanceStrategyRoundRobin(), kafka.NewBalanceStrategySticky(),
	}
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		for _, strategy := range strategies {
			t.Run(strategy.Name(), func(t *testing.T) {
				config := *config
				config.Consumer.Group.Rebalance.GroupStrategies = []kafka.BalanceStrategy{strategy}
				config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
				topic, groupID := newTopic(t, &config, partitions), name(t)
				produce(t, &config, topic, 20)
				first := join(t, &config, groupID, topic)
				first.await(t, partitions)
				var values []string
				for len(values) < 20 {
					values = append(values, take(t, first.messages, nil))
				}
				second := join(t, &config, groupID, topic)
				of_second := second.await(t, partitions/2)
				of_first := first.await(t, partitions/2)
				both := append(slices.Clone(of_first), of_second...)
				slices.Sort(both)
				if !slices.Equal(both, []int32{0, 1, 2, 3}) {
					t.Fatalf("partitions of both: found %v", both)
				}
				produce(t, &config, topic, 40)
				var later []string
				for len(later) < 40 {
					later = append(later, take(t, first.messages, second.messages))
				}
				checkOnce(t, values, 20)
				checkOnce(t, later, 40)
				described, err := newAdmin(t, &config).DescribeConsumerGroups([]string{groupID})
				must(t, err)
				if described[0].State != "Stable" || len(described[0].Members) != 2 {
					t.Fatalf("group: expected Stable with 2 members, found %+v", described[0])
				}
				second.leave(t)
				first.await(t, partitions)
				first.leave(t)
				checkCommitted(t, &config, groupID, topic, 60)
			})
		}
	})
}

func take(t *testing.T, first chan string, second chan string) string {
	t.Helper()
	select {
	case value := <-first:
		return value
	case value := <-second:
		return value
	case <-time.After(patience):
		t.Fatal("no message came")
		return ""
	}
}

// checkCommitted checks the sum of the offsets of a group.
func checkCommitted(t *testing.T, config *kafka.Config, groupID string, topic string, expected int64) {
	t.Helper()
	response, err := newAdmin(t, config).ListConsumerGroupOffsets(groupID, map[string][]int32{topic: {0, 1, 2, 3}})
	must(t, err)
	var sum int64
	for number := range int32(partitions) {
		sum += max(response.GetBlock(topic, number).Offset, 0)
	}
	if sum != expected {
		t.Fatalf("sum of the offsets: expected %d, found %d", expected, sum)
	}
}

func TestStaticMemberKeepsItsPartitions(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		topic, groupID := newTopic(t, config, partitions), name(t)
		own := *config
		own.Consumer.Group.InstanceId = "one"
		first := join(t, &own, groupID, topic)
		first.await(t, partitions)
		first.leave(t)
		again := join(t, &own, groupID, topic)
		again.await(t, partitions)
		if _, err := newAdmin(t, config).RemoveMemberFromConsumerGroup(groupID, []string{"one"}); err != nil {
			t.Fatal(err)
		}
		again.leave(t)
	})
}

func TestAdminOfTopics(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		admin, topic, retention := newAdmin(t, config), name(t), "3600000"
		detail := &kafka.TopicDetail{
			NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention},
		}
		must(t, admin.CreateTopic(topic, detail, true))
		must(t, admin.CreateTopic(topic, detail, false))
		if err := admin.CreateTopic(topic, detail, false); !errors.Is(err, kafka.ErrTopicAlreadyExists) {
			t.Fatalf("a second topic: expected %v, found %v", kafka.ErrTopicAlreadyExists, err)
		}
		topics, err := admin.ListTopics()
		must(t, err)
		if found := topics[topic]; found.NumPartitions != 2 || *found.ConfigEntries["retention.ms"] != retention {
			t.Fatalf("topic: found %+v", found)
		}
		must(t, admin.CreatePartitions(topic, partitions, nil, false))
		described, err := admin.DescribeTopics([]string{topic})
		must(t, err)
		if described[0].Err != kafka.ErrNoError || len(described[0].Partitions) != partitions {
			t.Fatalf("topic: found %+v", described[0])
		}
		longer := "7200000"
		must(t, admin.IncrementalAlterConfig(kafka.TopicResource, topic, map[string]kafka.IncrementalAlterConfigsEntry{
			"retention.ms": {Operation: kafka.IncrementalAlterConfigsOperationSet, Value: &longer},
		}, false))
		entries, err := admin.DescribeConfig(kafka.ConfigResource{
			Type: kafka.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"},
		})
		must(t, err)
		if len(entries) != 1 || entries[0].Value != longer {
			t.Fatalf("settings: found %+v", entries)
		}
		produce(t, config, topic, 40)
		client, err := kafka.NewClient(seeds, config)
		must(t, err)
		defer client.Close()
		ends := map[int32]int64{}
		var sum int64
		for number := range int32(partitions) {
			ends[number], err = client.GetOffset(topic, number, kafka.OffsetNewest)
			must(t, err)
			sum += ends[number]
		}
		if sum != 40 {
			t.Fatalf("ends: found %v", ends)
		}
		must(t, admin.DeleteRecords(topic, ends))
		for number := range int32(partitions) {
			start, err := client.GetOffset(topic, number, kafka.OffsetOldest)
			must(t, err)
			if start != ends[number] {
				t.Fatalf("start of partition %d: expected %d, found %d", number, ends[number], start)
			}
		}
		must(t, admin.DeleteTopic(topic))
		topics, err = admin.ListTopics()
		must(t, err)
		if _, isThere := topics[topic]; isThere {
			t.Fatal("the topic was deleted, and is listed")
		}
		if err := admin.DeleteTopic(topic); !errors.Is(err, kafka.ErrUnknownTopicOrPartition) {
			t.Fatalf("deleted again: expected %v, found %v", kafka.ErrUnknownTopicOrPartition, err)
		}
	})
}

func TestAdminOfGroups(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		admin, topic, groupID := newAdmin(t, config), newTopic(t, config, partitions), name(t)
		m := join(t, config, groupID, topic)
		m.await(t, partitions)
		groups, err := admin.ListConsumerGroups()
		must(t, err)
		if groups[groupID] != "consumer" {
			t.Fatalf("groups: found %v", groups)
		}
		if err := admin.DeleteConsumerGroup(groupID); !errors.Is(err, kafka.ErrNonEmptyGroup) {
			t.Fatalf("delete: expected %v, found %v", kafka.ErrNonEmptyGroup, err)
		}
		m.leave(t)
		_, err = admin.AlterConsumerGroupOffsets(groupID, map[string]map[int32]kafka.OffsetAndMetadata{
			topic: {0: {Offset: 7, LeaderEpoch: -1}, 1: {Offset: 5, LeaderEpoch: -1}},
		}, nil)
		must(t, err)
		checkCommitted(t, config, groupID, topic, 12)
		must(t, admin.DeleteConsumerGroupOffset(groupID, topic, 1))
		checkCommitted(t, config, groupID, topic, 7)
		must(t, admin.DeleteConsumerGroup(groupID))
		if err := admin.DeleteConsumerGroup(groupID); !errors.Is(err, kafka.ErrGroupIDNotFound) {
			t.Fatalf("deleted again: expected %v, found %v", kafka.ErrGroupIDNotFound, err)
		}
	})
}

func TestAdminOfCluster(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		admin, topic := newAdmin(t, config), newTopic(t, config, 1)
		brokers, controller, err := admin.DescribeCluster()
		must(t, err)
		if !slices.ContainsFunc(brokers, func(broker *kafka.Broker) bool { return broker.ID() == controller }) {
			t.Fatalf("controller %d: not among %d brokers", controller, len(brokers))
		}
		produce(t, config, topic, 10)
		var ids []int32
		for _, broker := range brokers {
			ids = append(ids, broker.ID())
		}
		directories, err := admin.DescribeLogDirs(ids)
		must(t, err)
		var size int64
		for _, each := range directories {
			for _, directory := range each {
				for _, found := range directory.Topics {
					if found.Topic == topic {
						size += found.Partitions[0].Size
					}
				}
			}
		}
		if size <= 0 {
			t.Fatalf("bytes of the topic: found %d", size)
		}
		user := []kafka.QuotaEntityComponent{
			{EntityType: kafka.QuotaEntityUser, MatchType: kafka.QuotaMatchExact, Name: name(t)},
		}
		must(t, admin.AlterClientQuotas(user, kafka.ClientQuotasOp{Key: "producer_byte_rate", Value: 1e6}, false))
		quotas, err := admin.DescribeClientQuotas([]kafka.QuotaFilterComponent{
			{EntityType: kafka.QuotaEntityUser, MatchType: kafka.QuotaMatchExact, Match: user[0].Name},
		}, true)
		must(t, err)
		if len(quotas) != 1 || quotas[0].Values["producer_byte_rate"] != 1e6 {
			t.Fatalf("quotas: found %+v", quotas)
		}
		must(t, admin.AlterClientQuotas(user, kafka.ClientQuotasOp{Key: "producer_byte_rate", Remove: true}, false))
		offsets, err := admin.ListOffsets(map[string]map[int32]int64{topic: {0: kafka.OffsetNewest}}, nil)
		must(t, err)
		if found := offsets[topic][0]; found == nil || !errors.Is(found.Err, kafka.ErrNoError) || found.Offset != 10 {
			t.Fatalf("end: expected 10, found %+v", found)
		}
	})
}

func TestTransactionalProducer(t *testing.T) {
	forEachVersion(t, func(t *testing.T, config *kafka.Config) {
		own := *config
		own.Producer.Idempotent = true
		own.Producer.Transaction.ID = name(t)
		own.Net.MaxOpenRequests = 1
		committed := *config
		committed.Consumer.IsolationLevel = kafka.ReadCommitted
		source, topic, groupID := newTopic(t, config, partitions), newTopic(t, config, partitions), name(t)
		producer, err := kafka.NewSyncProducer(seeds, &own)
		must(t, err)
		send := func(from, to int) {
			for i := from; i < to; i++ {
				_, _, err := producer.SendMessage(&kafka.ProducerMessage{
					Topic: topic, Key: kafka.StringEncoder(fmt.Sprint(i)), Value: kafka.StringEncoder(fmt.Sprint(i)),
				})
				must(t, err)
			}
		}
		offset := func(value int64) map[string][]*kafka.PartitionOffsetMetadata {
			return map[string][]*kafka.PartitionOffsetMetadata{source: {{Partition: 0, Offset: value, LeaderEpoch: -1}}}
		}
		must(t, producer.BeginTxn())
		send(0, 10)
		must(t, producer.AddOffsetsToTxn(offset(10), groupID))
		must(t, producer.CommitTxn())
		must(t, producer.BeginTxn())
		send(100, 110)
		must(t, producer.AddOffsetsToTxn(offset(20), groupID))
		must(t, producer.AbortTxn())
		checkCommitted(t, config, groupID, source, 10)
		must(t, producer.BeginTxn())
		send(10, 20)
		must(t, producer.CommitTxn())
		checkOnce(t, read(t, &committed, topic, 20), 20)
		fenced := producer
		producer, err = kafka.NewSyncProducer(seeds, &own) // the same transactional id: the first one is fenced
		must(t, err)
		must(t, fenced.BeginTxn())
		_, _, err = fenced.SendMessage(&kafka.ProducerMessage{Topic: topic, Value: kafka.StringEncoder("fenced")})
		if err == nil {
			err = fenced.CommitTxn()
		}
		if err == nil {
			t.Fatal("a producer whose transactional id another has committed")
		}
		fenced.Close()
		must(t, producer.BeginTxn())
		send(20, 30)
		must(t, producer.CommitTxn())
		must(t, producer.Close())
		checkOnce(t, read(t, &committed, topic, 30), 30)
	})
}
